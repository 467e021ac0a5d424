package mariadb

import (
	"context"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// changedBy are the tables that a statement may have changed that was logged instead of rows; none if it may have changed any. It names
// them only if it calls nothing that the server might have stored, and none of them has triggers: both could change other tables.
func (s *Source) changedBy(ctx context.Context, st *statement) ([]stream.Table, error) {
	tables, calls := st.dmlTables()
	if len(tables) == 0 {
		return nil, nil
	}
	for _, t := range tables {
		if sees, err := s.seesTriggers(ctx, t); err != nil || !sees {
			return nil, err
		}
		var fires bool
		if err := s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND EVENT_OBJECT_TABLE = ?) OR EXISTS (SELECT 1 FROM information_schema.VIEWS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?)",
			t.Schema, t.Name, t.Schema, t.Name).Scan(&fires); err != nil {
			return nil, s.wrap("look for triggers of "+t.String(), err)
		}
		if fires {
			return nil, nil
		}
	}
	for _, name := range calls {
		var stored bool
		err := s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM mysql.proc WHERE name = ?)", name).Scan(&stored)
		if code, ok := errorCode(err); ok && (code == codeTableDenied || code == codeDatabaseDenied) {
			return nil, nil // information_schema would show only functions that the user may execute
		}
		if err != nil {
			return nil, s.wrap("look for the function "+name, err)
		}
		if stored {
			return nil, nil
		}
	}
	return tables, nil
}

// seesTriggers reports whether the user is known to have the privilege to see the triggers of a table. To others the server shows none.
func (s *Source) seesTriggers(ctx context.Context, t stream.Table) (sees bool, err error) {
	const (
		host = "SUBSTRING_INDEX(CURRENT_USER(), '@', -1)"
		mine = " WHERE PRIVILEGE_TYPE = 'TRIGGER' AND GRANTEE = CONCAT('''', LEFT(CURRENT_USER(), CHAR_LENGTH(CURRENT_USER()) - CHAR_LENGTH(" + host + ") - 1), '''@''', " + host + ", '''')"
	)
	err = s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.USER_PRIVILEGES"+mine+") OR EXISTS (SELECT 1 FROM information_schema.SCHEMA_PRIVILEGES"+mine+" AND ? LIKE TABLE_SCHEMA)"+
		" OR EXISTS (SELECT 1 FROM information_schema.TABLE_PRIVILEGES"+mine+" AND TABLE_SCHEMA = ? AND TABLE_NAME = ?)", t.Schema, t.Schema, t.Name).Scan(&sees)
	return sees, s.wrap("read the privileges on table "+t.String(), err)
}

// native reports whether a word before a bracket is not the name of a stored function: a function of the server comes before a stored one of its
// name, unless a schema or a space says that it is not meant.
func (s *statement) native(i int) bool {
	w := s.words[i]
	if w.quoted || i > 0 && s.words[i-1].is(".") {
		return false
	}
	return w.is("VALUES", "VALUE", "IN", "AND", "OR") || w.to == s.words[i+1].from && sameEverywhere[strings.ToUpper(w.text)]
}

// dmlTables are the tables that INSERT, REPLACE, UPDATE or DELETE of one table names, with those that it only reads, and the names that
// look like calls. There are none if it is not known for certain which tables it names.
func (s *statement) dmlTables() (tables []stream.Table, calls []string) {
	from := s.at
	defer func() { s.at = from }()
	if s.unsure || !s.balanced() || !s.setStatement() {
		return nil, nil
	}
	switch {
	case s.acceptAny("INSERT", "REPLACE"):
		for s.acceptAny("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO") {
		}
	case s.accept("UPDATE"):
		for s.acceptAny("LOW_PRIORITY", "IGNORE") {
		}
	case s.accept("DELETE"):
		for s.acceptAny("LOW_PRIORITY", "QUICK", "IGNORE") {
		}
		if !s.accept("FROM") {
			return nil, nil // DELETE t1, t2 FROM …
		}
	default:
		return nil, nil
	}
	t, ok := s.name()
	if !ok || s.peek().is(",") || s.peek().is(".") {
		return nil, nil
	}
	for i := s.at; i < len(s.words); i++ {
		w := s.words[i]
		switch {
		case w.is("SELECT", "JOIN", "USING", "WITH", "TABLE", "NEXT", "PREVIOUS", "NEXTVAL", "SETVAL", "LASTVAL"):
			return nil, nil // it reads other tables, which might be views that call functions
		case w.is("(") && i > s.at && s.words[i-1].name && !s.native(i-1):
			calls = append(calls, strings.ToLower(s.words[i-1].text))
		}
	}
	slices.Sort(calls)
	return []stream.Table{t}, slices.Compact(calls)
}
