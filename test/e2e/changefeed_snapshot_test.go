package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// snapshotOf is how far the initial copy of a changefeed is; zero while that is not known.
func snapshotOf(c *cluster, name string) v1alpha1.ChangefeedSnapshotStatus {
	cf := &v1alpha1.Changefeed{}
	if c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, cf) != nil || cf.Status.Snapshot == nil {
		return v1alpha1.ChangefeedSnapshotStatus{}
	}
	return *cf.Status.Snapshot
}

// awaitCopied waits until the initial copy of a changefeed is finished.
func awaitCopied(t *testing.T, c *cluster, name string) v1alpha1.ChangefeedSnapshotStatus {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		s := snapshotOf(c, name)
		if s.FinishedAt != nil {
			return s
		}
		if time.Now().After(deadline) || feedState(c, name) == v1alpha1.ChangefeedFailed {
			t.Fatalf("the initial copy is not finished:\n%s", c.must("status", "changefeeds", "-o", "json"))
		}
	}
}

// The commands of docs/changefeeds.md, as they are there but for the addresses of the servers.
func TestTheCommandsInTheDocumentationCopyAServer(t *testing.T) {
	beside(t, heavy)
	page, err := os.ReadFile("../../docs/changefeeds.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "## From two servers to a running copy\n")
	if !ok {
		t.Fatal("docs/changefeeds.md has no such section")
	}
	commands := strings.Split(strings.TrimSpace(fenced(section, "sh")[0]), "\n")
	if len(commands) != 5 {
		t.Fatalf("there are %d commands: %q", len(commands), commands)
	}
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	source.Exec("CREATE DATABASE shop CHARACTER SET utf8mb4", "CREATE TABLE shop.orders (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, customer VARCHAR(40), amount DECIMAL(12,2))",
		"CREATE TABLE shop.customers (name VARCHAR(40) PRIMARY KEY)", "CREATE TABLE shop.log (line TEXT)", "CREATE TABLE shop.empty (id INT PRIMARY KEY)",
		"USE shop; INSERT INTO orders (customer, amount) SELECT CONCAT('c', seq % 100), seq / 7 FROM seq_1_to_20000; INSERT INTO customers SELECT CONCAT('c', seq) FROM seq_1_to_100; INSERT INTO log SELECT seq FROM seq_1_to_500")
	c := newCluster(t, testenv.EbbPlain(t))
	work := t.TempDir()
	c.dir = datadir.Dir(filepath.Join(work, "copy"))
	t.Cleanup(func() { testenv.EndPrograms(c.dir, "*") })
	for file, m := range map[string]*testenv.MariaDB{"db1.password": source, "db2.password": sink} {
		if err := os.WriteFile(filepath.Join(work, file), []byte(m.Password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	programs := t.TempDir()
	if err := os.Symlink(c.ebb, filepath.Join(programs, "ebb")); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
	for i, command := range commands {
		command = strings.ReplaceAll(command, "ebb@db1.example:3306", source.User+"@"+source.Address)
		command = strings.ReplaceAll(command, "ebb@db2.example:3306", sink.User+"@"+sink.Address)
		if i == 0 {
			background, ok := strings.CutSuffix(command, " &")
			if !ok {
				t.Fatalf("%q does not run in the background", command)
			}
			up := c.launchAt(work, env, "sh", "-c", "exec "+background)
			until(t, "ebb up to be ready", func() bool { return hasLine(up.out.String(), "ready") })
			if err := c.connect(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir, cmd.Env = work, env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		t.Logf("%s\n%s", command, out)
	}
	s := awaitCopied(t, c, "shop")
	if s.Tables != 4 || s.TablesDone != 4 || s.Rows != 20600 {
		t.Errorf("the copy is %+v", s)
	}
	source.Exec("INSERT INTO shop.empty VALUES (1)", "UPDATE shop.orders SET amount = 1 WHERE id = 5")
	const sums = "CHECKSUM TABLE shop.orders, shop.customers, shop.log, shop.empty EXTENDED"
	until(t, "the copy to be equal", func() bool { return rowsText(t, source, sums) == rowsText(t, sink, sums) })
}

// rowsText is the result of a query as text.
func rowsText(t *testing.T, m *testenv.MariaDB, query string) string {
	t.Helper()
	db := m.Open("")
	defer db.Close()
	rows, err := db.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	text := ""
	for rows.Next() {
		var name, sum string
		if err := rows.Scan(&name, &sum); err != nil {
			t.Fatal(err)
		}
		text += name + " " + sum + "\n"
	}
	return text
}

// Tables are copied while rows and tables change, a node is drained and another is killed.
func TestACopyUnderLoadEndsEqual(t *testing.T) {
	beside(t, heavy)
	rows, big := 500, 60_000
	if testlength.Long() {
		rows, big = 5000, 1_000_000
	}
	source, sink := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--server-id=2")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)), 3)
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*testenv.MariaDB{"source": source, "sink": sink} {
		if err := os.WriteFile(filepath.Join(c.dir.Credentials(), name), []byte(m.Password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source.Exec("CREATE DATABASE app", fmt.Sprintf("USE app; CREATE TABLE big (id BIGINT PRIMARY KEY, n INT, s VARCHAR(40)); INSERT INTO big SELECT seq, seq, MD5(seq) FROM seq_1_to_%d", big))
	for i := range loadTables {
		source.Exec(fmt.Sprintf("USE app; CREATE TABLE %s (id INT PRIMARY KEY, n INT, s VARCHAR(40)); INSERT INTO %s SELECT seq + 1000000, seq, MD5(seq) FROM seq_1_to_%d", loadTable(i), loadTable(i), rows))
	}
	l := startLoad(t, source, busy(2))
	c.must("changefeed", "create", "app", "--source", "mysql://"+source.User+"@"+source.Address, "--source-password-file", "source",
		"--sink", "mysql://"+sink.User+"@"+sink.Address, "--sink-password-file", "sink", "--filter", "app.*", "--snapshot", "--snapshot-rows-per-second", fmt.Sprint(big/12))
	until(t, "the copy to begin", func() bool { return snapshotOf(c, "app").Rows > 0 })
	leader := c.awaitLeader("")
	target, victim := others(trio, leader)[0], others(trio, leader)[1]
	c.signal(victim, syscall.SIGKILL)
	epoch := c.record(victim).Epoch
	c.startNode(victim)
	c.awaitReady(victim, epoch+1)
	before := snapshotOf(c, "app")
	t.Logf("drained during the copy:\n%s", c.must("drain", target, "--wait"))
	t.Logf("copied before the drain: %d of %d rows; after it: %d", before.Rows, before.EstimatedRows, snapshotOf(c, "app").Rows)
	if before.FinishedAt != nil {
		t.Log("the copy was finished before the drain")
	}
	s := awaitCopied(t, c, "app")
	l.end()
	t.Logf("%d rows of %d tables copied in %s, %d transactions and %d rounds of DDL", s.Rows, s.Tables, s.FinishedAt.Sub(s.StartedAt.Time), l.done.Load(), l.extra.Load())
	wantSame(t, c, source, sink)
}

// BenchmarkInitialCopy is how many rows a second a changefeed copies initially, beside mariadb-dump into mariadb, from the same server on the
// same machine, while rows are changed: with one node; with three; and with three of which one is killed and one is drained. The ratio is
// that of the changefeed with one node to the dump. All rows are compared in the end.
func BenchmarkInitialCopy(b *testing.B) {
	const tables = 8
	rows := sized(10_000_000, 200_000) / tables
	source := startBenchSource(b)
	source.Exec("CREATE DATABASE app")
	for i := range tables {
		source.Exec(fmt.Sprintf("USE app; CREATE TABLE %s (id INT PRIMARY KEY, n INT, s VARCHAR(40), KEY (n)); INSERT INTO %s SELECT seq, seq * 7 %% 100003, MD5(seq) FROM seq_1_to_%d", benchTable(i), benchTable(i), rows))
	}
	total := float64(tables * rows)
	for b.Loop() {
		copied := func(what string, by func(sink *testenv.MariaDB) (took, nodes time.Duration)) time.Duration {
			sink := startBenchSink(b)
			defer sink.Kill()
			servers := []int{serverPID(b, source), serverPID(b, sink)}
			before := cpuTime(b, servers)
			took, nodes := by(sink)
			used := cpuTime(b, servers) - before
			b.Logf("%.0f rows in %d tables, %s: %.0f rows/s; CPU of servers %.2f and of nodes %.2f µs a row; load average %s", total, tables, what,
				total/took.Seconds(), float64(used.Nanoseconds())/1000/total, float64(nodes.Nanoseconds())/1000/total, loadAverage())
			return took
		}
		dumped := copied("mariadb-dump into mariadb", func(sink *testenv.MariaDB) (time.Duration, time.Duration) { return dumpInto(b, source, sink), 0 })
		one := copied("one node", func(sink *testenv.MariaDB) (time.Duration, time.Duration) {
			return copyInto(b, source, sink, tables, 1, nil)
		})
		three := copied("three nodes", func(sink *testenv.MariaDB) (time.Duration, time.Duration) {
			return copyInto(b, source, sink, tables, 3, nil)
		})
		disturbed := copied("three, one killed and one drained", func(sink *testenv.MariaDB) (time.Duration, time.Duration) {
			return copyInto(b, source, sink, tables, 3, killAndDrain)
		})
		b.ReportMetric(total/dumped.Seconds(), "dump-rows/s")
		b.ReportMetric(total/one.Seconds(), "copy-rows/s")
		b.ReportMetric(total/three.Seconds(), "copy3-rows/s")
		b.ReportMetric(total/disturbed.Seconds(), "disturbed-rows/s")
		b.ReportMetric(dumped.Seconds()/one.Seconds(), "ratio")
	}
	b.ReportMetric(0, "ns/op") // of both, and of starting servers
}

// dumpInto is how long mariadb-dump takes to copy a server into another.
func dumpInto(b *testing.B, source, sink *testenv.MariaDB) time.Duration {
	b.Helper()
	stop := changeRows(b, source)
	defer stop()
	began := time.Now()
	to := func(m *testenv.MariaDB) string {
		host, port, _ := strings.Cut(m.Address, ":")
		return fmt.Sprintf("--no-defaults --protocol=tcp --host=%s --port=%s --user=%s --password=%s", host, port, m.User, m.Password)
	}
	out, err := exec.Command("sh", "-c", "mariadb-dump "+to(source)+" --single-transaction --master-data=2 --gtid --databases app | mariadb "+to(sink)).CombinedOutput()
	if err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return time.Since(began)
}

// killAndDrain kills a node when a fifth of the rows is copied, starts it again, and drains another one when two fifths are. The function that
// it returns ends what it has started.
func killAndDrain(b *testing.B, c *cluster) (end func()) {
	b.Helper()
	at := func(share float64) v1alpha1.ChangefeedSnapshotStatus {
		var s v1alpha1.ChangefeedSnapshotStatus
		within(b, 30*time.Minute, "a part of the rows to be copied", func() bool {
			s = snapshotOf(c, "app")
			return s.EstimatedRows > 0 && float64(s.Rows) >= share*float64(s.EstimatedRows)
		})
		return s
	}
	at(0.05)
	maintainer := feedOf(b, c, "app").Placement().Node
	c.apart(maintainer)
	victim := others(others(trio, maintainer), c.awaitLeader(""))[0]
	killed := at(0.2)
	epoch := c.record(victim).Epoch
	c.signal(victim, syscall.SIGKILL)
	again := c.startNode(victim)
	c.awaitReady(victim, epoch+1)
	drained := at(0.4)
	took := drainAway(b, c, maintainer, patience)
	s := snapshotOf(c, "app")
	if s.FinishedAt != nil || s.Rows <= drained.Rows && s.TablesDone < s.Tables {
		b.Logf("the copy was at %+v after the drain", s)
	}
	b.Logf("%s was killed when %d rows were copied, and %s, which had the maintainer, was drained in %.1f s when %d were; then %d of about %d were copied",
		victim, killed.Rows, maintainer, took.Seconds(), drained.Rows, s.Rows, s.EstimatedRows)
	return again.stop
}

// copyInto is how long a changefeed takes, from its creation, and the CPU time of its nodes, as far as they still run. Meanwhile something
// may be done to the cluster.
func copyInto(b *testing.B, source, sink *testenv.MariaDB, tables, nodes int, disturb func(*testing.B, *cluster) (end func())) (took, used time.Duration) {
	b.Helper()
	c := startCluster(b, testenv.EbbPlain(b), nodes)
	defer c.up.stop()
	stop := changeRows(b, source)
	defer stop()
	db := sink.Open("")
	defer db.Close()
	began := time.Now()
	createBenchFeed(b, c, source, sink, "", func(spec *v1alpha1.ChangefeedSpec) { spec.Snapshot = &v1alpha1.ChangefeedSnapshot{} })
	if disturb != nil {
		defer disturb(b, c)()
	}
	within(b, 30*time.Minute, "all tables to be copied", func() bool {
		var done int
		err := db.QueryRow("SELECT COALESCE(SUM(done), 0) FROM ebb.snapshot").Scan(&done)
		if err != nil && !strings.Contains(err.Error(), "doesn't exist") { // it is made by the changefeed
			b.Fatal(err)
		}
		return done == tables
	})
	took = time.Since(began)
	if disturb == nil {
		for _, name := range trio[:nodes] {
			used += cpuTime(b, []int{c.pid(name)})
		}
	}
	stop()
	awaitSameRows(b, source, sink)
	return took, used
}

// changeRows changes rows of the first table of a server until it is stopped, about a hundred a second.
func changeRows(b *testing.B, source *testenv.MariaDB) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	db := source.Open("app")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := db.Exec(fmt.Sprintf("UPDATE %s SET n = n + 1 WHERE id BETWEEN %d AND %d", benchTable(0), i%1000*20, i%1000*20+10)); err != nil {
				b.Error(err)
				return
			}
			time.Sleep(100 * time.Millisecond) // a rate, not a wait
		}
	}()
	return sync.OnceFunc(func() {
		cancel()
		<-ended
		db.Close()
	})
}
