package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// A DROP TABLE NOWAIT of a table with partitions may fail after it has removed the list of partitions. The server still lists the table, which
// the referee must not take for one that is at the sink only.
func TestTheRefereeKnowsATableThatItsServerCannotOpen(t *testing.T) {
	m := testenv.StartMariaDB(t, "--table-open-cache=500") // with arguments of its own, so that no other test gets its files
	m.Exec("CREATE DATABASE h_a", "CREATE TABLE h_a.t3 (id INT PRIMARY KEY) PARTITION BY HASH (id) PARTITIONS 2", "CREATE TABLE h_a.whole (id INT PRIMARY KEY)", "CREATE TABLE h_a.base (id INT)", "CREATE VIEW h_a.v AS SELECT * FROM h_a.base", "DROP TABLE h_a.base")
	if err := os.Remove(filepath.Join(m.Data, "h_a", "t3.par")); err != nil {
		t.Fatal(err)
	}
	m.Exec("FLUSH TABLES")
	db := m.Open("")
	defer db.Close()
	tables, err := tablesOf(t.Context(), db, "h_a", "h_b", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(tables) != 2 || tables["h_a.`t3`"] != unopened || !strings.HasPrefix(tables["h_a.`whole`"], "CREATE TABLE") {
		t.Errorf("%q", tables)
	}
}
