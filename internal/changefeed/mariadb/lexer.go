package mariadb

import (
	"strconv"
	"strings"
)

// token is a word of a statement. A quoted name is without its quotes.
type token struct {
	text string
	// quoted names are never keywords.
	quoted bool
	// name: it may be an identifier.
	name bool
	// from and to are where it is in the text, with its quotes.
	from, to int
}

// is reports whether the token is one of some keywords or punctuation, given in upper case.
func (t token) is(words ...string) bool {
	if t.quoted {
		return false
	}
	for _, w := range words {
		if strings.EqualFold(t.text, w) {
			return true
		}
	}
	return false
}

// lexer splits a statement into tokens. It skips comments, but not the content of executable comments.
type lexer struct {
	text string
	at   int
	// ansiQuotes: "x" is a name and not a string.
	ansiQuotes bool
	// noEscapes: a backslash in a string is only a backslash.
	noEscapes bool
	// executable: it is inside an executable comment.
	executable bool
	// unsure: a quote or comment does not end, or it depends on the version of the server whether a comment is executed.
	unsure bool
}

// next returns the next token; ok is false at the end.
func (l *lexer) next() (t token, ok bool) {
	l.skipSpace()
	if l.at >= len(l.text) {
		return token{}, false
	}
	from := l.at
	t = l.token(l.text[from])
	t.from, t.to = from, l.at
	return t, true
}

// token reads the token that begins with a character.
func (l *lexer) token(c byte) token {
	switch {
	case c == '`' || c == '"' && l.ansiQuotes:
		return token{text: l.quoted(c, false), quoted: true, name: true}
	case c == '\'' || c == '"':
		return token{text: l.quoted(c, !l.noEscapes), quoted: true}
	case isWord(c):
		from := l.at
		for l.at < len(l.text) && isWord(l.text[l.at]) {
			l.at++
		}
		return token{text: l.text[from:l.at], name: true}
	}
	l.at++
	l.unsure = l.unsure || c == '[' || c == ']' // with sql_mode=MSSQL they quote names
	return token{text: l.text[l.at-1 : l.at]}
}

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// quoted reads up to the closing quote, which is escaped by doubling it.
func (l *lexer) quoted(quote byte, escapes bool) string {
	var b strings.Builder
	for l.at++; l.at < len(l.text); l.at++ {
		c := l.text[l.at]
		switch {
		case c == '\\' && escapes && l.at+1 < len(l.text):
			l.at++
			b.WriteByte(l.text[l.at])
		case c != quote:
			b.WriteByte(c)
		case l.at+1 < len(l.text) && l.text[l.at+1] == quote:
			l.at++
			b.WriteByte(c)
		default:
			l.at++
			return b.String()
		}
	}
	l.unsure = true
	return b.String()
}

// skipSpace passes white space, comments, and the brackets of executable comments.
func (l *lexer) skipSpace() {
	for l.at < len(l.text) {
		rest := l.text[l.at:]
		switch {
		case strings.IndexByte(" \t\r\n\f\v\x00", rest[0]) >= 0:
			l.at++
		case rest[0] == '#' || strings.HasPrefix(rest, "--") && (len(rest) == 2 || rest[2] <= ' ' || rest[2] == 0x7f):
			l.skipLine()
		case !l.executable && (strings.HasPrefix(rest, "/*!") || strings.HasPrefix(rest, "/*M!")):
			l.openExecutable(rest)
		case l.executable && strings.HasPrefix(rest, "*/"):
			l.executable = false
			l.at += 2
		case strings.HasPrefix(rest, "/*"):
			l.skipComment()
		default:
			return
		}
	}
}

// The numbers of versions up to which every supported server executes a comment, and those of MySQL that no MariaDB executes.
const (
	executedUpTo             = oldestMajor*10000 + oldestMinor*100
	onlyMySQLFrom, onlyMySQL = 50700, 99999
)

// openExecutable passes the beginning of a comment that the server executes: /*! or /*M!, and the oldest version that does.
func (l *lexer) openExecutable(rest string) {
	mariaDB := rest[2] == 'M'
	from := strings.IndexByte(rest, '!') + 1
	to := from
	for to < len(rest) && to < from+6 && '0' <= rest[to] && rest[to] <= '9' {
		to++
	}
	version, _ := strconv.Atoi(rest[from:to])
	switch {
	case to-from != 0 && to-from < 5:
		l.unsure = true // it is not a version
	case !mariaDB && onlyMySQLFrom <= version && version <= onlyMySQL:
		l.skipComment()
		return
	case version > executedUpTo:
		l.unsure = true
	}
	l.at += to
	l.executable = true
}

func (l *lexer) skipLine() {
	if i := strings.IndexByte(l.text[l.at:], '\n'); i >= 0 {
		l.at += i + 1
		return
	}
	l.at = len(l.text)
}

func (l *lexer) skipComment() {
	if i := strings.Index(l.text[l.at+2:], "*/"); i >= 0 {
		l.at += 2 + i + 2
		return
	}
	l.at, l.unsure = len(l.text), true
}
