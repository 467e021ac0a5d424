package sqlhistory

import "slices"

// Shrink removes statements from a history that fails, as long as it still fails. It asks about several candidates at once, which
// may be executed beside each other; fails answers for each. In the end no statement can be left out alone, unless fails is not
// always of the same opinion.
func Shrink(statements []Statement, fails func([][]Statement) []bool) []Statement {
	for size := max(len(statements)/2, 1); len(statements) > 1; {
		next, ok := without(statements, size, fails)
		switch {
		case ok:
			statements = next
			size = min(size, max(len(statements)/2, 1))
		case size == 1:
			return statements
		default:
			size /= 2
		}
	}
	return statements
}

// without leaves out pieces of a size: all at once that can be left out alone, or else the first of them.
func without(statements []Statement, size int, fails func([][]Statement) []bool) ([]Statement, bool) {
	var candidates [][]Statement
	for from := 0; from < len(statements); from += size {
		to := min(from+size, len(statements))
		candidates = append(candidates, slices.Concat(statements[:from], statements[to:]))
	}
	answers := fails(candidates)
	var all []Statement
	removable := 0
	for i, yes := range answers {
		if yes {
			removable++
			continue
		}
		all = append(all, statements[i*size:min((i+1)*size, len(statements))]...)
	}
	switch {
	case removable == 0:
		return nil, false
	case removable > 1 && len(all) > 0 && fails([][]Statement{all})[0]:
		return all, true
	}
	return candidates[slices.Index(answers, true)], true
}
