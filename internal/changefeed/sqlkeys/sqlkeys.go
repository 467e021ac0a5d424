// Package sqlkeys reads the foreign keys of a MariaDB server.
package sqlkeys

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Querier is a pool of connections or one session.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// codeNeedPrivilege: the user lacks a privilege.
const codeNeedPrivilege = 1227

// Actions of foreign keys, as InnoDB numbers them.
const (
	deleteCascade = 1
	deleteSetNull = 2
	updateCascade = 4
	updateSetNull = 8
)

// Read reads the foreign keys of all tables. InnoDB knows them without opening every table, but tells only users with the privilege PROCESS.
func Read(ctx context.Context, db Querier) ([]stream.ForeignKey, error) {
	keys, err := readOfInnoDB(ctx, db)
	var e *mysql.MySQLError
	if errors.As(err, &e) && e.Number == codeNeedPrivilege {
		return readOfTables(ctx, db)
	}
	return keys, err
}

// decoded is a part of a name as InnoDB stores it: schema/name, each as the name of a file.
func decoded(column, part string) string {
	return "CONVERT(CONVERT(CAST(SUBSTRING_INDEX(" + column + ", '/', " + part + ") AS BINARY) USING filename) USING utf8mb4)"
}

func readOfInnoDB(ctx context.Context, db Querier) ([]stream.ForeignKey, error) {
	return read(ctx, db, "SELECT f.ID, "+decoded("f.FOR_NAME", "1")+", "+decoded("f.FOR_NAME", "-1")+", "+decoded("f.REF_NAME", "1")+", "+decoded("f.REF_NAME", "-1")+","+
		" c.FOR_COL_NAME, c.REF_COL_NAME, f.TYPE FROM information_schema.INNODB_SYS_FOREIGN f JOIN information_schema.INNODB_SYS_FOREIGN_COLS c ON c.ID = f.ID ORDER BY f.ID, c.POS")
}

func readOfTables(ctx context.Context, db Querier) ([]stream.ForeignKey, error) {
	return read(ctx, db, `SELECT CONCAT(k.CONSTRAINT_SCHEMA, '/', k.TABLE_NAME, '/', k.CONSTRAINT_NAME), k.TABLE_SCHEMA, k.TABLE_NAME, k.REFERENCED_TABLE_SCHEMA, k.REFERENCED_TABLE_NAME, k.COLUMN_NAME, k.REFERENCED_COLUMN_NAME,
		CASE r.DELETE_RULE WHEN 'CASCADE' THEN 1 WHEN 'SET NULL' THEN 2 ELSE 0 END + CASE r.UPDATE_RULE WHEN 'CASCADE' THEN 4 WHEN 'SET NULL' THEN 8 ELSE 0 END
		FROM information_schema.KEY_COLUMN_USAGE k JOIN information_schema.REFERENTIAL_CONSTRAINTS r
		ON r.CONSTRAINT_SCHEMA = k.CONSTRAINT_SCHEMA AND r.TABLE_NAME = k.TABLE_NAME AND r.CONSTRAINT_NAME = k.CONSTRAINT_NAME
		WHERE k.REFERENCED_TABLE_NAME IS NOT NULL ORDER BY 1, k.ORDINAL_POSITION`)
}

// read reads one row for each column of a key.
func read(ctx context.Context, db Querier, query string) ([]stream.ForeignKey, error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var keys []stream.ForeignKey
	last := ""
	for rows.Next() {
		var id, column, referenced string
		var k stream.ForeignKey
		var actions int
		if err := rows.Scan(&id, &k.Child.Schema, &k.Child.Name, &k.Parent.Schema, &k.Parent.Name, &column, &referenced, &actions); err != nil {
			return nil, err
		}
		if id != last || len(keys) == 0 {
			k.Name = id[strings.LastIndexByte(id, '/')+1:]
			k.OnDelete, k.OnUpdate = actions&(deleteCascade|deleteSetNull) != 0, actions&(updateCascade|updateSetNull) != 0
			keys, last = append(keys, k), id
		}
		key := &keys[len(keys)-1]
		key.Columns, key.Referenced = append(key.Columns, column), append(key.Referenced, referenced)
	}
	return keys, rows.Err()
}
