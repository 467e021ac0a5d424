package snapshot

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// ShowCreate begins a statement that shows a definition byte for byte, with times in UTC. Whatever the sql_mode, the server shows strings in
// which a backslash escapes.
const ShowCreate = "SET STATEMENT sql_mode='', sql_quote_show_create=1, character_set_results=binary, time_zone='+00:00' FOR SHOW CREATE "

// Executable is a definition that SHOW CREATE has shown, as it can be executed by a session that speaks UTF-8 and in which a backslash
// escapes. The server shows defaults of binary columns byte for byte, so strings that are not UTF-8 become hexadecimal literals.
func Executable(shown string) string {
	if utf8.ValidString(shown) {
		return shown
	}
	var b strings.Builder
	for rest := shown; rest != ""; {
		quote := strings.IndexAny(rest, "'`")
		if quote < 0 {
			b.WriteString(rest)
			break
		}
		b.WriteString(rest[:quote])
		value, length := unquote(rest[quote:])
		if text := rest[quote : quote+length]; text[0] == '`' || utf8.ValidString(text) {
			b.WriteString(text)
		} else {
			fmt.Fprintf(&b, "X'%X'", value)
		}
		rest = rest[quote+length:]
	}
	return b.String()
}

// unquote is the value of the quoted string or name that a text begins with, and how long that is with its quotes. In strings a
// backslash escapes, in names it does not.
func unquote(text string) (value []byte, length int) {
	quote := text[0]
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '\\' && quote == '\'' && i+1 < len(text):
			i++
			value = append(value, escaped(text[i]))
		case c != quote:
			value = append(value, c)
		case i+1 < len(text) && text[i+1] == quote:
			i++
			value = append(value, c)
		default:
			return value, i + 1
		}
	}
	return value, len(text)
}

// escaped is what a character after a backslash stands for.
func escaped(c byte) byte {
	switch c {
	case '0':
		return 0
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'Z':
		return 0x1a
	}
	return c
}
