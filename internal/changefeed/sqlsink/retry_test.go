package sqlsink

import (
	"database/sql/driver"
	"fmt"
	"io"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// A full disk passes, as a restart does. What is wrong with a row or a statement does not.
func TestWhichErrorsAreTriedAgain(t *testing.T) {
	server := func(number uint16) error {
		return fmt.Errorf("write: %w", &mysql.MySQLError{Number: number, Message: "refused"})
	}
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"the disk is full", server(1021), true},
		{"the space of tables is full", server(1114), true},
		{"a deadlock", server(1213), true},
		{"the server stops", server(1053), true},
		{"the connection is lost", io.ErrUnexpectedEOF, true},
		{"the connection was bad", driver.ErrBadConn, true},
		{"a row is there already", server(codeDuplicate), false},
		{"no such table", server(codeNoSuchTable), false},
		{"the server is read-only", server(1290), false},
	} {
		if got := transient(c.err); got != c.want {
			t.Errorf("%s: tried again is %v", c.name, got)
		}
	}
}
