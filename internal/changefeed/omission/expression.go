package omission

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
)

// Expression is a condition on a row:
//
//	expression  term [OR term]...
//	term        factor [AND factor]...
//	factor      NOT factor | ( expression ) | column operator literal | column [NOT] IN ( literal, ... ) | column IS [NOT] NULL
//	operator    = <> != < <= > >=
//	literal     a number without an exponent | 'text' | X'6279746573'
//
// It means what it means to the server: a comparison with NULL is neither true nor false.
type Expression struct {
	text string
	root node
	// columns that it names.
	columns []string
}

// String is the text of the expression.
func (e *Expression) String() string { return e.text }

// comparesText reports whether it compares a column with text: such a comparison depends on the collation of the column.
func (e *Expression) comparesText() bool {
	found := false
	walk(e.root, func(n node) {
		if c, ok := n.(*comparison); ok {
			found = found || slices.ContainsFunc(c.with, func(l literal) bool { return l.kind == textLiteral })
		}
	})
	return found
}

// node is a part of an expression.
type node any

type (
	// anyOf and allOf are joined by OR and AND.
	anyOf struct{ of []node }
	allOf struct{ of []node }
	// negation is NOT.
	negation struct{ of node }
	// isNull is IS NULL.
	isNull struct{ column string }
	// comparison compares a column with one literal, or with several by IN.
	comparison struct {
		column   string
		operator string
		with     []literal
	}
)

// walk visits a node and those that it is made of.
func walk(n node, visit func(node)) {
	visit(n)
	switch n := n.(type) {
	case *anyOf:
		for _, each := range n.of {
			walk(each, visit)
		}
	case *allOf:
		for _, each := range n.of {
			walk(each, visit)
		}
	case *negation:
		walk(n.of, visit)
	}
}

type literalKind uint8

const (
	numberLiteral literalKind = iota
	textLiteral
	bytesLiteral
)

// literal is a value in an expression.
type literal struct {
	kind literalKind
	// text is what a text or bytes stand for, or a number as it was written.
	text   string
	number *big.Rat
}

// Limits of an expression.
const (
	longestExpression = 1024
	longestNumber     = 30 // digits, which every server compares exactly
)

// ParseExpression parses an expression.
func ParseExpression(text string) (*Expression, error) {
	e := &Expression{text: strings.TrimSpace(text)}
	p := &parser{}
	err := p.split(text)
	if err == nil {
		e.root, err = p.expression()
	}
	if err == nil && p.at < len(p.words) {
		err = fmt.Errorf("%q is not expected", p.words[p.at].text)
	}
	if err != nil {
		return nil, fmt.Errorf("rows %q: %w", e.text, err)
	}
	walk(e.root, func(n node) {
		name := ""
		switch n := n.(type) {
		case *comparison:
			name = n.column
		case *isNull:
			name = n.column
		}
		if name != "" && !slices.Contains(e.columns, name) {
			e.columns = append(e.columns, name)
		}
	})
	return e, nil
}

type wordKind uint8

const (
	wordName wordKind = iota + 1
	wordQuotedName
	wordNumber
	wordText
	wordBytes
	wordSign
)

// word of an expression. The text of a quoted one is without its quotes.
type word struct {
	kind wordKind
	text string
}

// parser reads the words of an expression one by one.
type parser struct {
	words []word
	at    int
}

// split splits an expression into words.
func (p *parser) split(text string) error {
	if len(text) > longestExpression {
		return fmt.Errorf("it has more than %d characters", longestExpression)
	}
	for rest := text; ; {
		if rest = strings.TrimLeft(rest, " "); rest == "" {
			return nil
		}
		w, length, err := next(rest)
		if err != nil {
			return err
		}
		p.words, rest = append(p.words, w), rest[length:]
	}
}

// next is the first word of a text, and how long that is there.
func next(text string) (word, int, error) {
	switch c := text[0]; {
	case c == '\'':
		return quoted(text, wordText)
	case (c == 'X' || c == 'x') && strings.HasPrefix(text[1:], "'"):
		w, length, err := quoted(text[1:], wordBytes)
		return w, length + 1, err
	case c == '`':
		w, length, err := quoted(text, wordQuotedName)
		if err == nil && !columnName.MatchString(w.text) {
			err = fmt.Errorf("column %q: use a column whose name has only ASCII letters, digits, _ and $", w.text)
		}
		return w, length, err
	case isNameByte(c) && (c < '0' || c > '9'):
		length := span(text, isNameByte)
		return word{wordName, text[:length]}, length, nil
	case '0' <= c && c <= '9' || c == '.' || c == '-':
		return number(text)
	}
	for _, sign := range []string{"<=>", "<=", ">=", "<>", "!=", "=", "<", ">", "(", ")", ","} {
		if strings.HasPrefix(text, sign) && sign != "<=>" {
			return word{wordSign, sign}, len(sign), nil
		}
	}
	return word{}, 0, fmt.Errorf("%q is not supported", text[:1])
}

func isNameByte(c byte) bool {
	return c == '_' || c == '$' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// span is how many bytes at the beginning of a text are of a class.
func span(text string, is func(byte) bool) int {
	for i := range len(text) {
		if !is(text[i]) {
			return i
		}
	}
	return len(text)
}

// quoted reads a quoted word, in which the quote is doubled. A backslash means one thing to one server and another to the next.
func quoted(text string, kind wordKind) (word, int, error) {
	var b strings.Builder
	quote := text[0]
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == quote && i+1 < len(text) && text[i+1] == quote:
			i++
			b.WriteByte(c)
		case c == quote:
			return word{kind, b.String()}, i + 1, nil
		case c < ' ' || c > '~' || c == '\\':
			return word{}, 0, fmt.Errorf("only printable ASCII characters without a backslash can be in quotes; use X'...' for other bytes")
		default:
			b.WriteByte(c)
		}
	}
	return word{}, 0, fmt.Errorf("a quote %c is not closed", quote)
}

func number(text string) (word, int, error) {
	digits := func(s string) int { return span(s, func(c byte) bool { return '0' <= c && c <= '9' }) }
	at := 0
	if text[0] == '-' {
		at++
		at += len(text[at:]) - len(strings.TrimLeft(text[at:], " "))
	}
	count := digits(text[at:])
	at += count
	if strings.HasPrefix(text[at:], ".") {
		n := digits(text[at+1:])
		at, count = at+1+n, count+n
		if n == 0 {
			count = 0
		}
	}
	switch {
	case count == 0:
		return word{}, 0, fmt.Errorf("%q is not a number", text[:min(len(text), max(at, 1))])
	case count > longestNumber:
		return word{}, 0, fmt.Errorf("a number has more than %d digits", longestNumber)
	case at < len(text) && isNameByte(text[at]):
		return word{}, 0, fmt.Errorf("%q is not a number; exponents are not supported", text[:at+1])
	}
	return word{wordNumber, strings.ReplaceAll(text[:at], " ", "")}, at, nil
}

// peek is the next word; of no kind at the end.
func (p *parser) peek() word {
	if p.at < len(p.words) {
		return p.words[p.at]
	}
	return word{text: "the end"}
}

// accept passes words without quotes, or signs, if they come next.
func (p *parser) accept(words ...string) bool {
	for i, text := range words {
		if p.at+i >= len(p.words) {
			return false
		}
		if w := p.words[p.at+i]; w.kind != wordName && w.kind != wordSign || !strings.EqualFold(w.text, text) {
			return false
		}
	}
	p.at += len(words)
	return true
}

func (p *parser) expression() (node, error) {
	first, err := p.term()
	if err != nil || !p.accept("OR") {
		return first, err
	}
	n := &anyOf{of: []node{first}}
	for {
		each, err := p.term()
		if err != nil {
			return nil, err
		}
		if n.of = append(n.of, each); !p.accept("OR") {
			return n, nil
		}
	}
}

func (p *parser) term() (node, error) {
	first, err := p.factor()
	if err != nil || !p.accept("AND") {
		return first, err
	}
	n := &allOf{of: []node{first}}
	for {
		each, err := p.factor()
		if err != nil {
			return nil, err
		}
		if n.of = append(n.of, each); !p.accept("AND") {
			return n, nil
		}
	}
}

func (p *parser) factor() (node, error) {
	switch {
	case p.accept("NOT"):
		of, err := p.factor()
		return &negation{of}, err
	case p.accept("("):
		of, err := p.expression()
		if err == nil && !p.accept(")") {
			err = fmt.Errorf("a bracket is not closed before %q", p.peek().text)
		}
		return of, err
	}
	return p.condition()
}

// keywords are no names of columns without quotes.
var keywords = []string{"AND", "OR", "NOT", "IN", "IS", "NULL", "XOR", "DIV", "MOD", "LIKE", "BETWEEN", "TRUE", "FALSE", "CASE", "BINARY", "EXISTS", "INTERVAL", "SELECT"}

func (p *parser) condition() (node, error) {
	w := p.peek()
	isKeyword := w.kind == wordName && slices.ContainsFunc(keywords, func(k string) bool { return strings.EqualFold(k, w.text) })
	if w.kind != wordName && w.kind != wordQuotedName || isKeyword {
		return nil, fmt.Errorf("a column is expected instead of %q; a comparison is of a column with a literal", w.text)
	}
	p.at++
	switch {
	case p.accept("IS", "NOT", "NULL"):
		return &negation{&isNull{w.text}}, nil
	case p.accept("IS", "NULL"):
		return &isNull{w.text}, nil
	case p.accept("NOT", "IN", "("):
		n, err := p.list(w.text)
		return &negation{n}, err
	case p.accept("IN", "("):
		return p.list(w.text)
	}
	sign := p.peek()
	if sign.kind != wordSign || !slices.Contains([]string{"=", "<>", "!=", "<", "<=", ">", ">="}, sign.text) {
		return nil, fmt.Errorf("after column %s, one of = <> < <= > >= IN, NOT IN, IS NULL and IS NOT NULL is expected instead of %q", w.text, sign.text)
	}
	p.at++
	if sign.text == "!=" {
		sign.text = "<>"
	}
	value, err := p.literal()
	return &comparison{column: w.text, operator: sign.text, with: []literal{value}}, err
}

// list reads the literals of IN.
func (p *parser) list(column string) (node, error) {
	n := &comparison{column: column, operator: "="}
	for {
		value, err := p.literal()
		if err != nil {
			return nil, err
		}
		n.with = append(n.with, value)
		if p.accept(")") {
			return n, nil
		}
		if !p.accept(",") {
			return nil, fmt.Errorf("in the list of column %s, a comma or a bracket is expected instead of %q", column, p.peek().text)
		}
	}
}

func (p *parser) literal() (literal, error) {
	w := p.peek()
	p.at++
	switch w.kind {
	case wordNumber:
		n, ok := new(big.Rat).SetString(w.text)
		if !ok {
			return literal{}, fmt.Errorf("%q is not a number", w.text)
		}
		return literal{numberLiteral, w.text, n}, nil
	case wordText:
		return literal{kind: textLiteral, text: w.text}, nil
	case wordBytes:
		var bytes []byte
		if _, err := fmt.Sscanf(w.text, "%x", &bytes); err != nil || len(bytes)*2 != len(w.text) {
			return literal{}, fmt.Errorf("X'%s' is not hexadecimal", w.text)
		}
		return literal{kind: bytesLiteral, text: string(bytes)}, nil
	case wordName:
		if strings.EqualFold(w.text, "NULL") {
			return literal{}, fmt.Errorf("a comparison with NULL is never true; use IS NULL or IS NOT NULL")
		}
	}
	return literal{}, fmt.Errorf("a number or a text in single quotes is expected instead of %q", w.text)
}
