package sqlsink_test

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// workload changes rows of several tables at random, in transactions over many of them. Values are few, so that keys
// meet, move, and come back; the tables are of every kind that the sink treats differently.
type workload struct {
	db     *sql.DB
	random *rand.Rand
}

// The tables of a workload: key, columns.
var workloadTables = []string{
	"CREATE TABLE w.one (id INT PRIMARY KEY, a INT, v VARCHAR(20))",
	"CREATE TABLE w.uniq (id INT PRIMARY KEY, a INT, v VARCHAR(20), UNIQUE (a), UNIQUE (v, a))",
	"CREATE TABLE w.pair (id INT, a INT, v VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL, PRIMARY KEY (v, id))",
	"CREATE TABLE w.text (id INT, a INT, v VARCHAR(20) COLLATE utf8mb4_general_ci NOT NULL PRIMARY KEY, UNIQUE (a))",
	"CREATE TABLE w.second (id INT NOT NULL, a INT NOT NULL, v VARCHAR(20), UNIQUE (a), UNIQUE (id, a))",
	"CREATE TABLE w.none (id INT, a INT, v VARCHAR(20))",
	"CREATE TABLE w.gen (id INT PRIMARY KEY, a INT, v VARCHAR(20), g INT AS (a * 2) STORED, UNIQUE (g))",
	"CREATE SEQUENCE w.numbers", "CREATE TABLE w.numbered (id INT DEFAULT NEXTVAL(w.numbers) PRIMARY KEY, a INT, v VARCHAR(20))",
}

var workloadNames = []string{"one", "uniq", "pair", "text", "second", "none", "gen", "numbered"}

func newWorkload(t testing.TB, server *testenv.MariaDB, seed uint64) *workload {
	t.Helper()
	w := &workload{db: server.Open("w"), random: rand.New(rand.NewPCG(seed, seed))}
	t.Cleanup(func() { w.db.Close() })
	return w
}

func makeWorkloadTables(server *testenv.MariaDB) {
	server.Exec(append([]string{"CREATE DATABASE w CHARACTER SET utf8mb4"}, workloadTables...)...)
}

// transaction runs one. Refused statements are part of it: the ones before and after count all the same.
func (w *workload) transaction() error {
	tx, err := w.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for range 1 + w.random.IntN(8) {
		if _, err := tx.Exec(w.statement()); err != nil {
			var e *mysql.MySQLError
			if !errors.As(err, &e) || e.Number != 1062 {
				return err
			}
		}
	}
	if w.random.IntN(10) == 0 {
		return nil // rolled back
	}
	return tx.Commit()
}

func (w *workload) statement() string {
	r := w.random
	table := workloadNames[r.IntN(len(workloadNames))]
	id, other, a, v := r.IntN(30), r.IntN(30), r.IntN(40), []string{"a", "A", "b", "B", "ä", "it''s", ""}[r.IntN(7)]
	switch r.IntN(9) {
	case 0, 1, 2, 3:
		return fmt.Sprintf("INSERT INTO %s (id, a, v) VALUES (%d, %d, '%s%d')", table, id, a, v, r.IntN(9))
	case 4:
		return fmt.Sprintf("UPDATE %s SET a = %d WHERE id = %d", table, a, id)
	case 5:
		return fmt.Sprintf("UPDATE %s SET v = CONCAT('%s', %d) WHERE id = %d", table, v, r.IntN(9), id)
	case 6:
		return fmt.Sprintf("DELETE FROM %s WHERE id = %d", table, id)
	case 7: // rows change places through a third
		return fmt.Sprintf("UPDATE %s SET id = CASE id WHEN %d THEN -1 ELSE id END WHERE id IN (%d, %d)", table, id, id, other)
	default:
		return fmt.Sprintf("REPLACE INTO %s (id, a, v) VALUES (%d, %d, '%s')", table, id, a, v)
	}
}

// swap exchanges unique values between two rows of one table.
func (w *workload) swap() error {
	x, y := w.random.IntN(30), w.random.IntN(30)
	tx, err := w.db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, s := range []string{
		fmt.Sprintf("SET @x = (SELECT a FROM uniq WHERE id = %d), @y = (SELECT a FROM uniq WHERE id = %d)", x, y),
		fmt.Sprintf("UPDATE uniq SET a = -1 WHERE id = %d", x),
		fmt.Sprintf("UPDATE uniq SET a = @x WHERE id = %d", y),
		fmt.Sprintf("UPDATE uniq SET a = @y WHERE id = %d", x),
		fmt.Sprintf("UPDATE one SET id = -5 WHERE id = %d", x),
		fmt.Sprintf("UPDATE one SET id = %d WHERE id = %d", x, y),
		fmt.Sprintf("UPDATE one SET id = %d WHERE id = -5", y),
	} {
		if _, err := tx.Exec(s); err != nil {
			var e *mysql.MySQLError
			if !errors.As(err, &e) || e.Number != 1062 {
				return err
			}
		}
	}
	return tx.Commit()
}

func (w *workload) run(t testing.TB, n int) {
	t.Helper()
	for range n {
		step := w.transaction
		if w.random.IntN(5) == 0 {
			step = w.swap
		}
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
}
