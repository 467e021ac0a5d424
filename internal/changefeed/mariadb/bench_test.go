package mariadb

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// BenchmarkRead is how many changed rows a second come out of a log with a hundred tables and six rows a transaction.
func BenchmarkRead(b *testing.B) {
	m := testenv.StartMariaDB(b)
	const tables, transactions = 100, 20000
	m.Exec("CREATE DATABASE d")
	for i := range tables {
		m.Exec(fmt.Sprintf("CREATE TABLE d.t%d (id BIGINT PRIMARY KEY AUTO_INCREMENT, k INT, v VARCHAR(200))", i))
	}
	db := m.Open("d")
	defer db.Close()
	for i := range transactions {
		t := i % tables
		if _, err := db.Exec(fmt.Sprintf("BEGIN; INSERT INTO t%d (k, v) VALUES (%d, REPEAT('x', 100)), (%d, REPEAT('y', 100)), (%d, REPEAT('z', 100)); UPDATE t%d SET k = k + 1 ORDER BY id DESC LIMIT 3; COMMIT", t, i, i, i, t)); err != nil {
			b.Fatal(err)
		}
	}
	s := open(b, m)
	head, err := s.Head(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	rows := 0
	var spent time.Duration
	b.ResetTimer()
	for b.Loop() {
		started := time.Now()
		err := s.Read(b.Context(), 0, func(tx *stream.Transaction) error {
			for _, r := range tx.Rows {
				rows += len(r.Changes)
			}
			if tx.Position == head {
				return errEnough
			}
			return nil
		})
		if !errors.Is(err, errEnough) {
			b.Fatal(err)
		}
		spent += time.Since(started)
	}
	b.ReportMetric(float64(rows)/spent.Seconds(), "rows/s")
}
