package mariadb

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlkeys"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// facts are what the log lacks about a table, read from the live server.
type facts struct {
	// types and generated are by the name of a column; empty if the live table has other columns.
	types     map[string]string
	generated map[string]bool
	// key is a unique key that cannot be NULL.
	key []int
}

// facts reads the facts of a table from the live server, with a key if the log has none. A table that does not exist any more, or has
// other columns now, has no facts.
func (s *Source) facts(ctx context.Context, t stream.Table, columns []string, key bool) (*facts, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT COLUMN_NAME, DATA_TYPE, IS_GENERATED = 'ALWAYS' FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION", t.Schema, t.Name)
	if err != nil {
		return nil, s.wrap("describe "+t.String(), err)
	}
	defer rows.Close()
	f := &facts{types: map[string]string{}, generated: map[string]bool{}}
	var live []string
	for rows.Next() {
		var name, typ string
		var generated bool
		if err := rows.Scan(&name, &typ, &generated); err != nil {
			return nil, s.wrap("describe "+t.String(), err)
		}
		live = append(live, name)
		f.types[name], f.generated[name] = strings.ToLower(typ), generated
	}
	if err := rows.Err(); err != nil {
		return nil, s.wrap("describe "+t.String(), err)
	}
	if !slices.Equal(live, columns) {
		return &facts{}, nil
	}
	if !key {
		return f, nil
	}
	f.key, err = s.uniqueKey(ctx, t, columns)
	return f, err
}

// uniqueKey is the shortest unique key of a table whose columns are whole and not NULL.
func (s *Source) uniqueKey(ctx context.Context, t stream.Table, columns []string) ([]int, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT INDEX_NAME, COLUMN_NAME, SUB_PART IS NULL AND NULLABLE <> 'YES' FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? AND NON_UNIQUE = 0 ORDER BY INDEX_NAME, SEQ_IN_INDEX`, t.Schema, t.Name)
	if err != nil {
		return nil, s.wrap("list the keys of "+t.String(), err)
	}
	defer rows.Close()
	var names []string
	keys, usable := map[string][]int{}, map[string]bool{}
	for rows.Next() {
		var index, column string
		var ok bool
		if err := rows.Scan(&index, &column, &ok); err != nil {
			return nil, s.wrap("list the keys of "+t.String(), err)
		}
		if _, seen := keys[index]; !seen {
			names, usable[index] = append(names, index), true
		}
		i := slices.Index(columns, column)
		keys[index], usable[index] = append(keys[index], i), usable[index] && ok && i >= 0
	}
	var best []int
	for _, name := range names {
		if usable[name] && (best == nil || len(keys[name]) < len(best)) {
			best = keys[name]
		}
	}
	return best, s.wrap("list the keys of "+t.String(), rows.Err())
}

// collation of text, and the character set that it is of.
type collation struct{ name, charset string }

// collations are all collations by their numbers.
func (s *Source) collations(ctx context.Context) (map[uint64]collation, error) {
	// Servers before 10.10 number collations in one table, later ones those without a character set of their own in another.
	const older = "SELECT ID, COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATIONS WHERE ID IS NOT NULL AND CHARACTER_SET_NAME IS NOT NULL"
	all := map[uint64]collation{}
	if err := s.addCollations(ctx, all, older); err != nil {
		return nil, err
	}
	var newer bool
	if err := s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema' AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID')").Scan(&newer); err != nil {
		return nil, s.wrap("list collations", err)
	}
	if newer {
		if err := s.addCollations(ctx, all, "SELECT ID, FULL_COLLATION_NAME, CHARACTER_SET_NAME FROM information_schema.COLLATION_CHARACTER_SET_APPLICABILITY"); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s *Source) addCollations(ctx context.Context, all map[uint64]collation, query string) error {
	rows, err := s.db.QueryContext(ctx, query)
	if err != nil {
		return s.wrap("list collations", err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uint64
		var c collation
		if err := rows.Scan(&id, &c.name, &c.charset); err != nil {
			return s.wrap("list collations", err)
		}
		all[id] = c
	}
	return s.wrap("list collations", rows.Err())
}

// inUTF8 converts a statement from the character set of its session to UTF-8, by a query to the server.
func (s *Source) inUTF8(ctx context.Context, text string, c sessionContext) (string, sessionContext, error) {
	if !c.known || isASCII(text) {
		return text, c, nil
	}
	all, err := s.collations(ctx)
	if err != nil {
		return "", c, err
	}
	set := all[uint64(c.charset)].charset
	if isUTF8(set) || set == "" || set == "binary" {
		return text, c, nil
	}
	var converted string
	if err := s.db.QueryRowContext(ctx, fmt.Sprintf("SELECT CONVERT(CONVERT(X'%x' USING %s) USING utf8mb4)", text, set)).Scan(&converted); err != nil {
		return "", c, s.wrap("convert a statement from "+set, err)
	}
	c.charset, c.converted = utf8mb4GeneralCI, true
	return converted, c, nil
}

const utf8mb4GeneralCI = 45

func isASCII(text string) bool {
	for i := range len(text) {
		if text[i] >= 0x80 {
			return false
		}
	}
	return true
}

func isUTF8(charset string) bool {
	switch charset {
	case "utf8mb4", "utf8mb3", "utf8", "ascii":
		return true
	}
	return false
}

// ForeignKeys are those that the tables have now.
func (s *Source) ForeignKeys(ctx context.Context) ([]stream.ForeignKey, error) {
	keys, err := sqlkeys.Read(ctx, s.db)
	if err != nil {
		return nil, fmt.Errorf("source %s: read the foreign keys: %w", s.options.Address, err)
	}
	return keys, nil
}
