package e2e

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

const (
	loadTables  = 40
	loadWriters = 3
)

// workload says what a load does.
type workload struct {
	seed     uint64
	tables   int
	rest     time.Duration // of each writer between two transactions
	ddlEvery time.Duration // between two rounds of DDL
}

// busy is as much as a node and a server on a small machine carry.
func busy(seed uint64) workload {
	return workload{seed: seed, tables: loadTables, rest: 8 * time.Millisecond, ddlEvery: time.Second}
}

// load is a workload on a source: transactions over several tables, and DDL among them.
type load struct {
	workload
	t    *testing.T
	db   *sql.DB
	stop context.CancelFunc
	wg   sync.WaitGroup

	ddl   sync.RWMutex // DDL and the statements that it may conflict with take turns, so that no statement uses a dropped table
	extra atomic.Int64
	done  atomic.Int64 // transactions
}

func startLoad(t *testing.T, source *testenv.MariaDB, w workload) *load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{workload: w, t: t, db: source.Open("app"), stop: cancel}
	for i := range loadWriters {
		l.wg.Go(func() { l.write(ctx, rand.New(rand.NewPCG(w.seed, uint64(i)))) })
	}
	l.wg.Go(func() { l.changeTables(ctx, rand.New(rand.NewPCG(w.seed, 99))) })
	t.Cleanup(l.end)
	return l
}

// pause waits until nothing is under way; nothing begins before resume.
func (l *load) pause() { l.ddl.Lock() }

func (l *load) resume() { l.ddl.Unlock() }

func (l *load) end() {
	l.stop()
	l.wg.Wait()
	l.db.Close()
}

func loadTable(i int) string { return fmt.Sprintf("t%02d", i) }

// What is under way is finished when the load ends: a statement that was given up on could still change the source later.

// write inserts, updates and deletes rows of a few tables in each transaction.
func (l *load) write(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		l.ddl.RLock()
		err := l.transaction(context.WithoutCancel(ctx), r)
		l.ddl.RUnlock()
		switch {
		case err == nil:
			l.done.Add(1)
		case ctx.Err() != nil || strings.Contains(err.Error(), "Deadlock"):
		case unanswered(err):
			time.Sleep(100 * time.Millisecond) // a rate, not a wait
		default:
			l.t.Errorf("workload: %v", err)
			return
		}
		time.Sleep(l.rest) // a rate, not a wait
	}
}

func (l *load) transaction(ctx context.Context, r *rand.Rand) error {
	tx, err := l.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for range 1 + r.IntN(3) {
		table, id := loadTable(r.IntN(l.tables)), r.IntN(200)
		statement := fmt.Sprintf("INSERT INTO %s (id, n, s) VALUES (%d, %d, '%x'), (%d, 1, NULL) ON DUPLICATE KEY UPDATE n = n + 1", table, id, r.IntN(1000), r.Uint64(), id+1)
		switch r.IntN(4) {
		case 0:
			statement = fmt.Sprintf("UPDATE %s SET n = n + 1, s = '%x' WHERE id BETWEEN %d AND %d", table, r.Uint64(), id, id+5)
		case 1:
			statement = fmt.Sprintf("DELETE FROM %s WHERE id BETWEEN %d AND %d", table, id, id+2)
		case 2:
			statement = fmt.Sprintf("UPDATE IGNORE %s SET id = id + 1000 WHERE id = %d", table, id)
		}
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// changeTables executes DDL: columns are added, tables are truncated, created, renamed and dropped.
func (l *load) changeTables(ctx context.Context, r *rand.Rand) {
	for ctx.Err() == nil {
		n := l.extra.Add(1)
		name := fmt.Sprintf("extra%d", n)
		statements := []string{
			fmt.Sprintf("ALTER TABLE %s ADD COLUMN c%d INT DEFAULT %d", loadTable(r.IntN(l.tables)), n, n),
			"TRUNCATE TABLE " + loadTable(r.IntN(l.tables)),
			fmt.Sprintf("CREATE TABLE %s (id INT PRIMARY KEY, s VARCHAR(20))", name),
			fmt.Sprintf("INSERT INTO %s VALUES (1, 'one'), (2, 'two')", name),
			fmt.Sprintf("RENAME TABLE %s TO %s_b", name, name),
			fmt.Sprintf("INSERT INTO %s_b VALUES (3, 'three')", name),
		}
		if n%2 == 0 {
			statements = append(statements, fmt.Sprintf("DROP TABLE %s_b", name))
		}
		for _, s := range statements {
			l.ddl.Lock()
			err := l.executeDDL(ctx, s)
			l.ddl.Unlock()
			if err != nil && ctx.Err() == nil {
				l.t.Errorf("workload: %s: %v", s, err)
				return
			}
		}
		timer := time.NewTimer(l.ddlEvery) // a rate, not a wait
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// executeDDL runs a statement until the source has answered. One that was cut short may have been done: then the source says
// that it cannot be done again.
func (l *load) executeDDL(ctx context.Context, statement string) error {
	for again := false; ; again = true {
		_, err := l.db.Exec(statement) // to its end, also when the load ends meanwhile
		if err == nil {
			return nil
		}
		if !unanswered(err) {
			if again {
				return nil
			}
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond) // a rate, not a wait
	}
}

// unanswered says that the server was killed before it could answer: nobody knows whether it did what it was asked.
func unanswered(err error) bool {
	var answer *mysql.MySQLError
	return !errors.As(err, &answer) || answer.Number == 1053 || answer.Number == 1927 // it shuts down, it ended the connection
}

// locked reports whether a statement has waited for the locks of others for too long.
func locked(err error) bool {
	var answer *mysql.MySQLError
	return errors.As(err, &answer) && answer.Number == 1205
}

// contents is every row of every table of the schema, as digests by table.
func contents(db *sql.DB) (map[string]string, error) {
	names, err := column(db, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'app' ORDER BY table_name")
	if err != nil {
		return nil, err
	}
	tables := map[string]string{}
	for _, name := range names {
		rows, err := db.Query("SELECT * FROM app." + name + " ORDER BY id")
		if err != nil {
			return nil, err
		}
		columns, _ := rows.Columns()
		h, count := sha256.New(), 0
		fmt.Fprintln(h, columns)
		var table, create string
		if err := db.QueryRow("SHOW CREATE TABLE app."+name).Scan(&table, &create); err != nil {
			rows.Close()
			return nil, err
		}
		fmt.Fprintln(h, autoIncrementOption.ReplaceAllString(create, ""))
		for rows.Next() {
			values := make([]sql.NullString, len(columns))
			into := make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			if err := rows.Scan(into...); err != nil {
				rows.Close()
				return nil, err
			}
			fmt.Fprintln(h, values)
			count++
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			return nil, err
		}
		tables[name] = fmt.Sprintf("%d rows %x", count, h.Sum(nil)[:8])
	}
	return tables, nil
}

func column(db *sql.DB, query string) ([]string, error) {
	rows, err := db.Query(query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var list []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		list = append(list, text)
	}
	return list, rows.Err()
}

// differences are the tables that are not the same on both sides.
func differences(source, sink map[string]string) []string {
	var list []string
	for name, is := range source {
		if sink[name] != is {
			list = append(list, fmt.Sprintf("%s: source %s, sink %q", name, is, sink[name]))
		}
	}
	for name := range sink {
		if _, ok := source[name]; !ok {
			list = append(list, name+" is at the sink only")
		}
	}
	slices.Sort(list)
	return list
}

// A real MariaDB pair under load, while nodes are drained and killed and the sink is killed: in the end every table is the
// same, row by row.
func TestFromMariaDBToMariaDB(t *testing.T) {
	beside(t, heavy)
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)), 3)
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c.dir.Credentials(), "source"), []byte(source.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.must("changefeed", "create", "app", "--source", "mysql://"+source.User+"@"+source.Address, "--source-password-file", "source",
		"--sink", "mysql://"+sink.User+"@"+sink.Address, "--sink-password-secret", "sink", "--filter", "app.*")
	until(t, "the changefeed to say which Secret is missing", func() bool {
		return strings.Contains(c.must("status", "changefeeds", "-o", "json"), `password of the sink: there is no Secret \"sink\" in namespace \"default\"`)
	})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "sink"}, StringData: map[string]string{"password": sink.Password}}
	if err := c.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	until(t, "the changefeed to run", func() bool { return feedState(c, "app") == v1alpha1.ChangefeedRunning })
	source.Exec("CREATE DATABASE app")
	for i := range loadTables {
		source.Exec(fmt.Sprintf("CREATE TABLE app.%s (id INT PRIMARY KEY, n INT, s VARCHAR(40))", loadTable(i)))
	}
	l := startLoad(t, source, busy(1))
	flows := func(what string) {
		t.Helper()
		before := checkpointOf(c, "app")
		for deadline := time.Now().Add(patience); checkpointOf(c, "app") <= before; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the checkpoint did not go on %s:\n%s", what, c.must("status", "changefeeds", "-o", "json"))
			}
		}
	}
	flows("at first")
	leader := c.awaitLeader("")
	target := others(trio, leader)[0]
	epoch := c.record(target).Epoch
	began := time.Now()
	said := c.must("drain", target, "--wait")
	t.Logf("drained under load in %s:\n%s", time.Since(began).Round(time.Millisecond), said)
	c.startNode(target)
	c.awaitReady(target, epoch+1)
	flows("after the drain")
	victim := others(trio, leader)[1]
	epoch = c.record(victim).Epoch
	c.signal(victim, syscall.SIGKILL)
	flows("after a kill")
	c.startNode(victim)
	c.awaitReady(victim, epoch+1)
	sink.Kill()
	sink.Start()
	flows("after the sink's kill")
	l.end()
	t.Logf("%d transactions and %d rounds of DDL", l.done.Load(), l.extra.Load())
	wantSame(t, c, source, sink)
}

func feedState(c *cluster, name string) v1alpha1.ChangefeedState {
	cf := &v1alpha1.Changefeed{}
	if c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, cf) != nil {
		return ""
	}
	return cf.Status.State
}

func checkpointOf(c *cluster, name string) int64 {
	cf := &v1alpha1.Changefeed{}
	if c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, cf) != nil {
		return 0
	}
	return cf.Status.Checkpoint
}

// wantSame waits until both sides are the same, row by row.
func wantSame(t *testing.T, c *cluster, source, sink *testenv.MariaDB) {
	t.Helper()
	from, to := source.Open("app"), sink.Open("app")
	defer from.Close()
	defer to.Close()
	want, err := contents(from)
	if err != nil {
		t.Fatal(err)
	}
	var last []string
	deadline := time.Now().Add(patience)
	for {
		got, err := contents(to)
		if err == nil {
			if last = differences(want, got); len(last) == 0 {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d tables differ (%v):\n%s\n%s", len(last), len(want), err, strings.Join(last, "\n"), c.must("status", "changefeeds"))
		}
		time.Sleep(100 * time.Millisecond)
	}
}
