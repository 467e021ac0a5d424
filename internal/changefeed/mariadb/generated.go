package mariadb

import (
	"fmt"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// The server writes the statements of CREATE TABLE … SELECT, and of CREATE TABLE … LIKE a temporary table, itself. It does so in utf8mb3,
// where ? stands for every byte of a binary value that is no text and for every character beyond the basic plane: the defaults and members that
// had them are not in the log. Nor are such comments, but these change no rows.

// lost is why the table that such a statement creates may differ from the one at the source; empty if it cannot.
func (s *statement) lost() string {
	for i, w := range s.words {
		if w.quoted && !w.name && strings.Contains(w.text, "?") && !s.comment(i) {
			return fmt.Sprintf("the server has logged '%s' for a text in which ? may stand for characters or bytes that its log cannot hold; "+
				"create a table like it with CREATE TABLE and its columns, and fill it with INSERT ... SELECT", w.text)
		}
	}
	return ""
}

// comment reports whether a word is the text of a comment on a table, a column or a key.
func (s *statement) comment(i int) bool {
	if i > 0 && s.words[i-1].is("=") {
		i--
	}
	return i > 0 && s.words[i-1].is("COMMENT")
}

// generated reports whether the server has written a statement itself: it creates a table in a transaction of its own with the rows, or from
// something that only its session has.
func generated(d *stream.DDL, standalone, ofSession bool) bool {
	return d.Kind == stream.CreateTable && (!standalone || ofSession)
}
