package mariadb

import (
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// spot records where a table is named, by words that were just passed. A name that is read twice must mean the same table both times.
func (s *statement) spot(from int, t stream.Table) {
	first, last := s.words[from], s.words[s.at-1]
	at := stream.Spot{From: first.from, To: last.to, Table: t, Qualified: s.at-from > 1}
	if at.Qualified && strings.TrimSpace(s.text[first.to:last.from]) != "." {
		s.doubt = "there is a comment inside the name of table " + t.String()
	}
	i := slices.IndexFunc(s.spots, func(o stream.Spot) bool { return o.From == at.From })
	switch {
	case i < 0:
		s.spots = append(s.spots, at)
	case s.spots[i].Table != t:
		s.doubt = "a name in it may mean table " + t.String() + " or table " + s.spots[i].Table.String()
	}
}

// locate tells a DDL where it names tables, or why that is not certain: it may name more than was read as tables.
func (s *statement) locate(d *stream.DDL) {
	s.sequences(d)
	slices.SortFunc(s.spots, func(a, b stream.Spot) int { return a.From - b.From })
	d.Spots, d.Doubt = s.spots, s.doubt
	if d.Doubt == "" {
		d.Doubt = s.others()
	}
	d.KeyIfExists = s.dropsKeyIfExists()
}

// sequences reads the names of sequences in defaults of columns. One without a schema is in that of the session, wherever the table is. The
// table refers to them: a default cannot be set before its sequence is there.
func (s *statement) sequences(d *stream.DDL) {
	at := s.at
	defer func() { s.at = at }()
	for s.at = 0; s.at < len(s.words); {
		switch {
		case s.comes("NEXT", "VALUE", "FOR"), s.comes("PREVIOUS", "VALUE", "FOR"):
			s.at += 3
		case s.callsSequence(s.at):
			s.at += 2
		default:
			s.at++
			continue
		}
		switch sequence, ok := s.name(); {
		case !ok:
			s.doubt = "the name of a sequence in it is not known"
		case s.form != formOther && !slices.Contains(d.References, sequence):
			d.References = append(d.References, sequence)
		}
	}
}

// callsSequence reports whether a word is a function of a sequence, and not the name of a table or a key.
func (s *statement) callsSequence(i int) bool {
	if i+1 >= len(s.words) || !s.words[i].is("NEXTVAL", "LASTVAL", "SETVAL") || !s.words[i+1].is("(") {
		return false
	}
	return i == 0 || !s.words[i-1].is("TABLE", "EXISTS", ".", "ON", "TO", "REFERENCES", "KEY", "INDEX", "UNIQUE", "FULLTEXT", "SPATIAL", "CONSTRAINT")
}

// others is what the statement has that may be a name with a schema or a table before it, besides the tables that were read; empty if there is
// nothing.
func (s *statement) others() string {
	for i := 0; i+2 < len(s.words); i++ {
		a, dot, b := s.words[i], s.words[i+1], s.words[i+2]
		if !a.name || !dot.is(".") || !b.name || !a.quoted && isNumber(a.text) || !b.quoted && isNumber(b.text) {
			continue
		}
		if !slices.ContainsFunc(s.spots, func(o stream.Spot) bool { return o.From == a.from }) {
			return "it names " + a.text + "." + b.text + ", which may depend on the name of a schema or a table"
		}
	}
	return ""
}

// isNumber reports whether a word is a number, which no name is without quotes: digits, and maybe an exponent.
func isNumber(text string) bool {
	rest := strings.TrimLeft(text, "0123456789")
	return rest != text && (rest == "" || strings.EqualFold(rest[:1], "e") && strings.Trim(rest[1:], "0123456789") == "")
}

// dropsKeyIfExists reports whether it drops a constraint only if there is one with that name.
func (s *statement) dropsKeyIfExists() bool {
	at := s.at
	defer func() { s.at = at }()
	for s.at = range s.words {
		if s.comes("DROP", "FOREIGN", "KEY", "IF", "EXISTS") || s.comes("DROP", "CONSTRAINT", "IF", "EXISTS") {
			return true
		}
	}
	return false
}
