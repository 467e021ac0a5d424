package mariadb

import (
	"slices"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// A reader forgets tables once it knows many, but not amid a statement that describes several before their rows.
func TestTablesAreForgottenBetweenTransactions(t *testing.T) {
	m := testenv.StartMariaDB(t)
	m.Exec("CREATE DATABASE d")
	tables := []string{"a", "b", "c", "e"}
	for _, name := range tables {
		m.Exec("CREATE TABLE d."+name+" (id INT PRIMARY KEY, v INT)", "INSERT INTO d."+name+" VALUES (1, 0)")
	}
	for range 3 {
		m.Exec("UPDATE d.a, d.b, d.c, d.e SET a.v = a.v + 1, b.v = b.v + 1, c.v = c.v + 1, e.v = e.v + 1")
	}
	m.Exec("UPDATE d.b SET v = 9")
	s := open(t, m)
	s.shapes = 2
	changes := map[string][]any{}
	for _, tx := range collect(t, s, 0) {
		for _, rows := range tx.Rows {
			if err := rows.Decode(); err != nil {
				t.Fatal(err)
			}
			for _, c := range rows.Changes {
				changes[rows.Table.Name] = append(changes[rows.Table.Name], c.After[1])
			}
		}
	}
	for _, name := range tables {
		want := []any{int64(0), int64(1), int64(2), int64(3)}
		if name == "b" {
			want = append(want, int64(9))
		}
		if !slices.Equal(changes[name], want) {
			t.Errorf("table %s had the values %v, not %v", name, changes[name], want)
		}
	}
}
