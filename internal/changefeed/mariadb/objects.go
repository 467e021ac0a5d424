package mariadb

import "github.com/ebb-dev/ebb/internal/changefeed/stream"

// Statements that carry no data.

// dataless are their first words, whatever follows.
var dataless = []string{
	"GRANT", "REVOKE", "SET", "FLUSH", "RESET", "KILL", "CACHE", "INSTALL", "UNINSTALL",
	"LOCK", "UNLOCK", "SHOW", "USE", "BACKUP", "PURGE", "SIGNAL",
}

// carriesNoData passes the first words of a statement that carries no data. ANALYZE also executes INSERT, UPDATE and DELETE.
func (s *statement) carriesNoData() bool {
	if s.acceptAny(dataless...) {
		return true
	}
	if !s.acceptAny("ANALYZE", "CHECK", "CHECKSUM", "OPTIMIZE", "REPAIR") {
		return false
	}
	s.acceptAny("LOCAL", "NO_WRITE_TO_BINLOG")
	return s.acceptAny("TABLE", "TABLES", "VIEW", "VIEWS")
}

// objects are what CREATE, ALTER and DROP may be about besides tables, schemas, sequences and indexes. They carry no data.
var objects = []string{"VIEW", "TRIGGER", "PROCEDURE", "FUNCTION", "PACKAGE", "EVENT", "USER", "ROLE", "SERVER"}

// object reads a statement about one of these, with the clauses that may come before the word.
func (s *statement) object(d *stream.DDL) bool {
	for {
		switch {
		case s.acceptAny(objects...):
			d.Kind = stream.OtherDDL
			return true
		case s.acceptAny("ALGORITHM", "DEFINER"):
			if !s.accept("=") {
				return false
			}
			s.account()
		case s.accept("SQL", "SECURITY"):
			s.at++
		case s.acceptAny("AGGREGATE"):
		default:
			return false
		}
	}
}

// account passes a word, or the name of an account: user@host, CURRENT_USER().
func (s *statement) account() {
	s.at++
	if s.accept("@") {
		s.at++
		for s.accept(".") || s.accept("-") { // a host without quotes
			s.at++
		}
	}
	s.accept("(", ")")
}
