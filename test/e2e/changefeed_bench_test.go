package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// The benchmarks below take minutes. With -short they are small: what they tell is then of no use but that they work.
func sized(full, small int) int {
	if testing.Short() {
		return small
	}
	return full
}

// within is until with a limit of its own, for what may take long.
func within(b *testing.B, limit time.Duration, what string, holds func() bool) {
	b.Helper()
	deadline := time.Now().Add(limit)
	for !holds() {
		if time.Now().After(deadline) {
			b.Fatalf("waited %s for %s", limit, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Every server of a benchmark has the same memory and promises as little to the disk; a replica has no advantage or
// disadvantage by a log of its own or by how often it writes down where it is.
var benchServer = []string{
	"--innodb-buffer-pool-size=512M", "--innodb-log-file-size=256M", "--table-open-cache=4000",
	"--sync-binlog=0", "--sync-master-info=0", "--sync-relay-log=0", "--sync-relay-log-info=0",
}

func startBenchSource(b *testing.B) *testenv.MariaDB { return testenv.StartMariaDB(b, benchServer...) }

func startBenchSink(b *testing.B) *testenv.MariaDB {
	return testenv.StartMariaDB(b, append(slices.Clone(benchServer), "--server-id=2", "--skip-log-bin")...)
}

func benchTable(i int) string { return fmt.Sprintf("t%04d", i) }

// makeBenchTables makes the tables of a benchmark on a server.
func makeBenchTables(m *testenv.MariaDB, tables int) {
	statements := []string{"CREATE DATABASE app"}
	for i := range tables {
		statements = append(statements, fmt.Sprintf("CREATE TABLE app.%s (id BIGINT PRIMARY KEY, k INT, v VARCHAR(200))", benchTable(i)))
	}
	m.Exec(statements...)
}

// changesPerTransaction is how many rows each transaction of tableChanges changes.
const changesPerTransaction = 6

// tableChanges makes up what happens to one table. Row 0 is left to others.
type tableChanges struct {
	table  string
	random *rand.Rand
	live   []int
	last   int
}

func newTableChanges(tables int) []*tableChanges {
	list := make([]*tableChanges, tables)
	for i := range list {
		list[i] = &tableChanges{table: "app." + benchTable(i), random: rand.New(rand.NewPCG(uint64(i), 1))}
	}
	return list
}

// transaction is the next one: two rows come, three change, one goes. The first brings the rows that others then change.
func (t *tableChanges) transaction() string {
	if len(t.live) == 0 {
		return "BEGIN; " + t.insert(changesPerTransaction) + "; COMMIT; "
	}
	text := "BEGIN; " + t.insert(2)
	for i := range 3 {
		j := i + t.random.IntN(len(t.live)-i)
		t.live[i], t.live[j] = t.live[j], t.live[i]
	}
	text += fmt.Sprintf("; UPDATE %s SET k = k + 1, v = '%0100d' WHERE id IN (%d, %d, %d)", t.table, t.random.Uint64(), t.live[0], t.live[1], t.live[2])
	i, end := t.random.IntN(len(t.live)), len(t.live)-1
	text += fmt.Sprintf("; DELETE FROM %s WHERE id = %d; COMMIT; ", t.table, t.live[i])
	t.live[i] = t.live[end]
	t.live = t.live[:end]
	return text
}

func (t *tableChanges) insert(rows int) string {
	var values []string
	for range rows {
		t.last++
		t.live = append(t.live, t.last)
		values = append(values, fmt.Sprintf("(%d, %d, '%0100d')", t.last, t.random.IntN(1<<20), t.random.Uint64()))
	}
	return "INSERT INTO " + t.table + " VALUES " + strings.Join(values, ", ")
}

// writtenLog is a source whose log was written before anybody reads it.
type writtenLog struct {
	source  *testenv.MariaDB
	tables  int
	changes int
	// start and end are the GTIDs before the first change and of the last, which is a row in every table.
	start, end string
	rows       map[string]string
}

func writeLog(b *testing.B, tables, changes int) *writtenLog {
	b.Helper()
	l := &writtenLog{source: startBenchSource(b), tables: tables}
	makeBenchTables(l.source, tables)
	l.start = l.source.Value("SELECT @@gtid_binlog_pos")
	db := l.source.Open("")
	defer db.Close()
	all := newTableChanges(tables)
	var text strings.Builder
	write := func() {
		if _, err := db.Exec(text.String()); err != nil {
			b.Fatal(err)
		}
		text.Reset()
	}
	for i := range changes / changesPerTransaction {
		text.WriteString(all[i%tables].transaction())
		l.changes += changesPerTransaction
		if i%100 == 99 {
			write()
		}
	}
	text.WriteString("BEGIN; ")
	for _, t := range all {
		text.WriteString("INSERT INTO " + t.table + " VALUES (0, 0, 'the last'); ")
	}
	text.WriteString("COMMIT")
	write()
	l.changes += tables
	l.end = l.source.Value("SELECT @@gtid_binlog_pos")
	from := l.source.Open("app")
	defer from.Close()
	var err error
	if l.rows, err = contents(from); err != nil {
		b.Fatal(err)
	}
	return l
}

// serverPID is the process of a server.
func serverPID(b *testing.B, m *testenv.MariaDB) int {
	b.Helper()
	text, err := os.ReadFile(m.Value("SELECT @@pid_file"))
	if err != nil {
		b.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		b.Fatal(err)
	}
	return pid
}

// applied is how a log was applied.
type applied struct {
	rate         float64       // changes per second
	source, sink time.Duration // CPU time of the servers for each change
}

// apply times an applier alone: on a server of its own, which is gone afterwards. Every row must be as at the source.
func (l *writtenLog) apply(b *testing.B, by func(*testing.B, *testenv.MariaDB) time.Duration) applied {
	b.Helper()
	sink := startBenchSink(b)
	defer sink.Kill()
	makeBenchTables(sink, l.tables)
	from, into := []int{serverPID(b, l.source)}, []int{serverPID(b, sink)}
	beforeFrom, beforeInto := cpuTime(b, from), cpuTime(b, into)
	took := by(b, sink)
	usedFrom, usedInto := cpuTime(b, from)-beforeFrom, cpuTime(b, into)-beforeInto
	to := sink.Open("app")
	defer to.Close()
	got, err := contents(to)
	if err != nil {
		b.Fatal(err)
	}
	if bad := differences(l.rows, got); len(bad) > 0 {
		b.Fatalf("%d of %d tables differ:\n%s", len(bad), l.tables, strings.Join(bad[:min(len(bad), 20)], "\n"))
	}
	return applied{float64(l.changes) / took.Seconds(), usedFrom / time.Duration(l.changes), usedInto / time.Duration(l.changes)}
}

// byReplica lets the server itself replicate the log; with no parallel threads, one thread applies.
func (l *writtenLog) byReplica(parallel int) func(*testing.B, *testenv.MariaDB) time.Duration {
	return func(b *testing.B, sink *testenv.MariaDB) time.Duration {
		sink.Exec(
			"SET GLOBAL gtid_slave_pos = '"+l.start+"'",
			fmt.Sprintf("SET GLOBAL slave_parallel_threads = %d, slave_parallel_mode = optimistic", parallel),
			fmt.Sprintf("CHANGE MASTER TO master_host = '127.0.0.1', master_port = %d, master_user = '%s', master_password = '%s', master_use_gtid = slave_pos",
				l.source.Port(), l.source.User, l.source.Password))
		db := sink.Open("")
		defer db.Close()
		began := time.Now()
		if _, err := db.Exec("START SLAVE"); err != nil {
			b.Fatal(err)
		}
		within(b, patience, "the replica to be at "+l.end, func() bool {
			var at string
			if err := db.QueryRow("SELECT @@gtid_slave_pos").Scan(&at); err != nil {
				b.Fatal(err)
			}
			if problem := replicaProblem(b, db); problem != "" {
				b.Fatalf("the replica stopped at %s: %s", at, problem)
			}
			return at == l.end
		})
		return time.Since(began)
	}
}

// replicaProblem is what a replica stumbled over, if anything.
func replicaProblem(b *testing.B, db *sql.DB) string {
	b.Helper()
	rows, err := db.Query("SHOW SLAVE STATUS")
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	names, _ := rows.Columns()
	values, into := make([]sql.NullString, len(names)), make([]any, len(names))
	for i := range values {
		into[i] = &values[i]
	}
	problem := ""
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			b.Fatal(err)
		}
		for i, name := range names {
			if name == "Last_IO_Error" || name == "Last_SQL_Error" {
				problem += values[i].String
			}
		}
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return problem
}

// carried is how a changefeed came through a log.
type carried struct {
	applied
	nodes      time.Duration // CPU time of the nodes for each change, from their start on
	placed     time.Duration // from its creation until a dispatcher owned every table
	rowsAtOnce float64       // that were written with one batch, on average
}

// byEbb lets a changefeed carry it. The time is from the changefeed's creation, so that it includes what it takes to place it.
func (l *writtenLog) byEbb(nodes int, how *carried, change ...func(*v1alpha1.ChangefeedSpec)) func(*testing.B, *testenv.MariaDB) time.Duration {
	return func(b *testing.B, sink *testenv.MariaDB) time.Duration {
		c := startCluster(b, testenv.EbbPlain(b), nodes)
		defer c.up.stop()
		end := l.end[strings.LastIndexByte(l.end, '-')+1:]
		db := sink.Open("")
		defer db.Close()
		began := time.Now()
		createBenchFeed(b, c, l.source, sink, l.start, change...)
		within(b, patience, "all tables to be at "+l.end, func() bool {
			var owned, done int
			err := db.QueryRow("SELECT COUNT(*), COALESCE(SUM(position >= "+end+"), 0) FROM ebb.progress WHERE table_name <> ''").Scan(&owned, &done)
			if err != nil && !strings.Contains(err.Error(), "doesn't exist") { // it is made by the changefeed
				b.Fatal(err)
			}
			if owned == l.tables && how.placed == 0 {
				how.placed = time.Since(began)
			}
			return done == l.tables
		})
		took := time.Since(began)
		var rows, batches float64
		for i := range nodes {
			text := scrape(b, c, trio[i])
			rows += total(text, "ebb_changefeed_rows_total")
			batches += total(text, "ebb_changefeed_flush_seconds_count")
		}
		how.rowsAtOnce = rows / batches
		for i := range nodes {
			how.nodes += cpuTime(b, []int{c.pid(trio[i])}) / time.Duration(l.changes)
		}
		return took
	}
}

// createBenchFeed makes the changefeed app from a server to another. Without a start it begins now.
func createBenchFeed(b *testing.B, c *cluster, source, sink *testenv.MariaDB, start string, change ...func(*v1alpha1.ChangefeedSpec)) {
	b.Helper()
	if err := os.MkdirAll(c.dir.Credentials(), 0o700); err != nil {
		b.Fatal(err)
	}
	for name, m := range map[string]*testenv.MariaDB{"source": source, "sink": sink} {
		if err := os.WriteFile(filepath.Join(c.dir.Credentials(), name), []byte(m.Password+"\n"), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	cf := &v1alpha1.Changefeed{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "app"},
		Spec: v1alpha1.ChangefeedSpec{
			Source: "mysql://" + source.User + "@" + source.Address, SourcePasswordFile: "source",
			Sink: "mysql://" + sink.User + "@" + sink.Address, SinkPasswordFile: "sink",
			Filter: []string{"app.*"}, StartPosition: start,
		},
	}
	for _, f := range change {
		f(&cf.Spec)
	}
	if err := c.client.Create(context.Background(), cf); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkReplicate is how many row changes a second a changefeed carries from one MariaDB to another, beside MariaDB's own
// replica, with one thread and in parallel, which applies the same log to the same kind of server.
func BenchmarkReplicate(b *testing.B) {
	for _, tables := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("tables=%d", tables), func(b *testing.B) { benchReplicate(b, tables) })
	}
}

// forwarding makes a changefeed forward rows as they were logged.
func forwarding(spec *v1alpha1.ChangefeedSpec) { spec.Forward = v1alpha1.ForwardAuto }

func benchReplicate(b *testing.B, tables int) {
	for b.Loop() {
		l := writeLog(b, tables, sized(600_000, 30_000))
		replica, parallel := l.apply(b, l.byReplica(0)), l.apply(b, l.byReplica(4))
		var one, three carried
		one.applied, three.applied = l.apply(b, l.byEbb(1, &one)), l.apply(b, l.byEbb(3, &three))
		var forward, forward3 carried
		forward.applied, forward3.applied = l.apply(b, l.byEbb(1, &forward, forwarding)), l.apply(b, l.byEbb(3, &forward3, forwarding))
		l.source.Kill()
		text := fmt.Sprintf("%d row changes, %d tables, %d rows a transaction, load average %s:\n", l.changes, tables, changesPerTransaction, loadAverage())
		text += fmt.Sprintf("  replica, one thread    %8.0f rows/s; CPU of source %s and sink %s a row\n  replica, four threads  %8.0f rows/s; CPU of source %s and sink %s a row",
			replica.rate, replica.source, replica.sink, parallel.rate, parallel.source, parallel.sink)
		for _, e := range []struct {
			name string
			carried
		}{{"one node   ", one}, {"three nodes", three}, {"one, forwarding  ", forward}, {"three, forwarding", forward3}} {
			after := float64(l.changes) / (float64(l.changes)/e.rate - e.placed.Seconds())
			text += fmt.Sprintf("\n  ebb, %-17s %8.0f rows/s, %.2f of one thread, %.2f of four; placed in %s, then %.0f rows/s, %.0f rows a batch; CPU of source %s, sink %s and nodes %s a row",
				e.name, e.rate, e.rate/replica.rate, e.rate/parallel.rate, e.placed.Round(time.Millisecond), after, e.rowsAtOnce, e.source, e.sink, e.nodes)
		}
		b.Log(text)
		b.ReportMetric(0, "ns/op") // most of it is preparation
		b.ReportMetric(replica.rate, "replica-rows/s")
		b.ReportMetric(parallel.rate, "parallel-rows/s")
		b.ReportMetric(one.rate, "ebb-rows/s")
		b.ReportMetric(three.rate, "ebb3-rows/s")
		b.ReportMetric(forward.rate, "forward-rows/s")
		b.ReportMetric(forward3.rate, "forward3-rows/s")
		b.ReportMetric(one.rate/replica.rate, "ratio-to-replica")
		b.ReportMetric(one.rate/parallel.rate, "ratio-to-parallel")
	}
}

// scrape is what a node tells in its metrics.
func scrape(b *testing.B, c *cluster, node string) string {
	b.Helper()
	ca, err := os.ReadFile(c.dir.CA())
	if err != nil {
		b.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport, Timeout: patience}).Get(c.node(node).Status.HTTPAddress + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Fatalf("metrics of %s: %s, %v", node, resp.Status, err)
	}
	return string(body)
}

// total adds up a metric over its labels.
func total(text, name string) float64 {
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseFloat(m[1], 64)
		sum += n
	}
	return sum
}

// histogram is how many observations were at most as long as each bound, in seconds.
type histogram map[float64]float64

// addBuckets adds a metric's buckets, times a sign.
func (h histogram) addBuckets(text, name string, sign float64) {
	for _, m := range regexp.MustCompile(`(?m)^`+name+`_bucket\{.*le="([^"]+)".*\} (\S+)$`).FindAllStringSubmatch(text, -1) {
		bound, _ := strconv.ParseFloat(m[1], 64)
		n, _ := strconv.ParseFloat(m[2], 64)
		h[bound] += sign * n
	}
}

// quantile is about how long a share of the observations was at most; for the share 1, the bound that none was longer than.
func (h histogram) quantile(share float64) float64 {
	low, below := 0.0, 0.0
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		switch n := h[bound]; {
		case n == 0 || n < share*h[math.Inf(1)]:
		case share == 1 || math.IsInf(bound, 1):
			return bound
		default:
			return low + (bound-low)*(share*h[math.Inf(1)]-below)/(n-below)
		}
		low, below = bound, h[bound]
	}
	return 0
}

// steadyLoad writes to all tables of a source at a steady rate.
type steadyLoad struct {
	b    *testing.B
	db   *sql.DB
	stop context.CancelFunc
	wg   sync.WaitGroup
	done atomic.Int64 // transactions
}

func startSteadyLoad(b *testing.B, source *testenv.MariaDB, tables, perSecond int) *steadyLoad {
	const writers = 4
	ctx, cancel := context.WithCancel(context.Background())
	l := &steadyLoad{b: b, db: source.Open(""), stop: cancel}
	l.db.SetMaxIdleConns(writers)
	all := newTableChanges(tables)
	for w := range writers {
		l.wg.Go(func() {
			// Each has tables of its own, so that none waits for another.
			random, mine := rand.New(rand.NewPCG(uint64(w), 2)), (tables-w+writers-1)/writers
			ticker := time.NewTicker(time.Second * writers / time.Duration(perSecond))
			defer ticker.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-ticker.C:
				}
				if _, err := l.db.Exec(all[w+writers*random.IntN(mine)].transaction()); err != nil {
					b.Error(err)
					return
				}
				l.done.Add(1)
			}
		})
	}
	b.Cleanup(l.end)
	return l
}

func (l *steadyLoad) end() {
	l.stop()
	l.wg.Wait()
	l.db.Close()
}

// beats writes row 0 of some tables at the source again and again, and looks when it is at the sink.
type beats struct {
	b        *testing.B
	tables   []string
	from, to *sql.DB
	stop     context.CancelFunc
	beating  sync.WaitGroup
	looking  sync.WaitGroup

	mu   sync.Mutex
	sent []time.Time   // when the source had committed each beat
	seen [][]time.Time // when it was at the sink, by table and beat
}

const (
	beatEvery = 50 * time.Millisecond
	lookEvery = 10 * time.Millisecond
)

func startBeats(b *testing.B, source, sink *testenv.MariaDB, tables []string) *beats {
	ctx, cancel := context.WithCancel(context.Background())
	p := &beats{b: b, tables: tables, from: source.Open("app"), to: sink.Open("app"), stop: cancel, seen: make([][]time.Time, len(tables))}
	p.from.SetMaxOpenConns(1)
	p.to.SetMaxOpenConns(1)
	p.beating.Go(func() {
		ticker := time.NewTicker(beatEvery)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if err := p.beat(); err != nil {
				b.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	})
	p.looking.Go(func() {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		for ctx.Err() == nil || !p.allSeen() {
			if err := p.look(); err != nil {
				b.Error(err)
				return
			}
			<-ticker.C
		}
	})
	b.Cleanup(p.end)
	return p
}

// beat writes the next beat to every table, in one transaction.
func (p *beats) beat() error {
	p.mu.Lock()
	n := len(p.sent) + 1
	p.mu.Unlock()
	text := "BEGIN; "
	for _, table := range p.tables {
		text += fmt.Sprintf("INSERT INTO %s VALUES (0, %d, 'beat') ON DUPLICATE KEY UPDATE k = VALUES(k); ", table, n)
	}
	if _, err := p.from.Exec(text + "COMMIT"); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent = append(p.sent, time.Now()) // a slow source is no lag
	return nil
}

// look takes note of the beats that have come to the sink.
func (p *beats) look() error {
	var parts []string
	for i, table := range p.tables {
		parts = append(parts, fmt.Sprintf("SELECT %d, k FROM %s WHERE id = 0", i, table))
	}
	rows, err := p.to.Query(strings.Join(parts, " UNION ALL "))
	if err != nil {
		return err
	}
	defer rows.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for rows.Next() {
		var i, n int
		if err := rows.Scan(&i, &n); err != nil {
			return err
		}
		for len(p.seen[i]) < n { // several may have come at once
			p.seen[i] = append(p.seen[i], now)
		}
	}
	return rows.Err()
}

// allSeen says whether every beat has come to every table.
func (p *beats) allSeen() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Failed() || !slices.ContainsFunc(p.seen, func(list []time.Time) bool { return len(list) < len(p.sent) })
}

// end stops beating and waits until every beat has come.
func (p *beats) end() {
	p.stop()
	p.beating.Wait()
	p.looking.Wait()
	p.from.Close()
	p.to.Close()
}

// lags are how long the beats that were sent in a span of time took to come to some of the tables, shortest first.
func (p *beats) lags(from, to time.Time, some func(table string) bool) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := []time.Duration{0} // there may be none
	for n, sent := range p.sent {
		if sent.Before(from) || sent.After(to) {
			continue
		}
		for i, seen := range p.seen {
			if some(p.tables[i]) {
				list = append(list, max(seen[n].Sub(sent), 0)) // it may be at the sink before its writer knows
			}
		}
	}
	slices.Sort(list)
	return list
}

// owners are the epochs that own the tables at a sink: a table that has another afterwards has moved.
func owners(b *testing.B, sink *testenv.MariaDB) map[string]string {
	b.Helper()
	db := sink.Open("ebb")
	defer db.Close()
	rows, err := db.Query("SELECT table_name, CONCAT(placement, '.', counter) FROM progress")
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var table, epoch string
		if err := rows.Scan(&table, &epoch); err != nil {
			b.Fatal(err)
		}
		all[table] = epoch
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return all
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// drainAway drains a node and returns when its process has ended.
func drainAway(b *testing.B, c *cluster, node string, limit time.Duration) time.Duration {
	b.Helper()
	pid, began := c.pid(node), time.Now()
	d := c.ask("bench", node)
	within(b, limit, "node "+node+" to be drained and gone", func() bool { return syscall.Kill(pid, 0) != nil })
	took := time.Since(began)
	c.awaitEnd(d.Name, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	return took
}

// apart makes sure that a node is not the coordinator, which cannot be drained.
func (c *cluster) apart(node string) {
	c.t.Helper()
	if c.awaitLeader("") == node {
		c.must("resign")
		c.awaitLeader(node)
	}
}

// placedTables is how many dispatchers of tables run, by the changefeeds' own count, and on which nodes.
func placedTables(b *testing.B, c *cluster) (all int64, on map[string]int64) {
	b.Helper()
	var list v1alpha1.ChangefeedList
	if err := c.client.List(context.Background(), &list); err != nil {
		b.Fatal(err)
	}
	on = map[string]int64{}
	for _, cf := range list.Items {
		if len(cf.Status.Nodes) == 0 {
			continue
		}
		all-- // the table trigger
		for _, n := range cf.Status.Nodes {
			on[n.Node] += n.Dispatchers
			all += n.Dispatchers
		}
	}
	return all, on
}

func feedOf(b *testing.B, c *cluster, name string) *v1alpha1.Changefeed {
	b.Helper()
	cf := &v1alpha1.Changefeed{}
	if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, cf); err != nil {
		b.Fatal(err)
	}
	return cf
}

// Targets of a drain under load.
const (
	drainTarget    = 10 * time.Second
	pauseTarget    = time.Second
	pauseP99Target = 300 * time.Millisecond
)

// BenchmarkDrainUnderLoad drains the node that has a third of the tables and the maintainer, between two MariaDB servers under
// load: how long it takes, by how much changes come later meanwhile, and how long tables that move stand still.
func BenchmarkDrainUnderLoad(b *testing.B) {
	tables, perSecond, before := sized(1000, 60), sized(500, 100), time.Duration(sized(15, 3))*time.Second
	for b.Loop() {
		source, sink := startBenchSource(b), startBenchSink(b)
		makeBenchTables(source, tables)
		makeBenchTables(sink, tables)
		c := startCluster(b, testenv.EbbPlain(b), 3)
		createBenchFeed(b, c, source, sink, "")
		within(b, patience, "all tables to be placed", func() bool { all, _ := placedTables(b, c); return all == int64(tables) })
		target := feedOf(b, c, "app").Placement().Node
		c.apart(target)
		if _, on := placedTables(b, c); on[target] < int64(tables/3) {
			b.Fatalf("the tables are not placed evenly: %v", on)
		}
		load := startSteadyLoad(b, source, tables, perSecond)
		var some []string
		for i := range 24 {
			some = append(some, benchTable(i*tables/24))
		}
		p := startBeats(b, source, sink, some)
		within(b, patience, "the first beats", func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return !slices.ContainsFunc(p.seen, func(list []time.Time) bool { return len(list) == 0 })
		})
		began, sofar := time.Now(), load.done.Load()
		time.Sleep(before) // what is measured: the load without a drain
		rate := float64(load.done.Load()-sofar) / time.Since(began).Seconds()
		pauses, owned := histogram{}, owners(b, sink)
		for _, node := range others(trio, target) {
			pauses.addBuckets(scrape(b, c, node), "ebb_changefeed_table_pause_seconds", -1)
		}
		asked := time.Now()
		took := drainAway(b, c, target, patience)
		gone := asked.Add(took)
		for _, node := range others(trio, target) {
			pauses.addBuckets(scrape(b, c, node), "ebb_changefeed_table_pause_seconds", 1)
		}
		load.end()
		p.end()
		awaitSameRows(b, source, sink)
		now := owners(b, sink)
		moved := func(table string) bool { return owned[table] != now[table] }
		calm := p.lags(began, asked, func(string) bool { return true })
		left, stayed := p.lags(asked, gone, moved), p.lags(asked, gone, func(table string) bool { return !moved(table) })
		largest := max(left[len(left)-1], stayed[len(stayed)-1])
		p50, p99, longest := pauses.quantile(0.5)*1000, pauses.quantile(0.99)*1000, pauses.quantile(1)*1000
		b.Logf("%d tables, %.0f transactions of %d rows a second, %.0f tables moved:\n"+
			"  drain        %8.1f s    (target: within %s)\n"+
			"  largest lag  %8.0f ms before, during the drain %.0f ms of tables that moved, %.0f ms of others\n"+
			"  median lag   %8.0f ms before, during the drain %.0f ms of tables that moved, %.0f ms of others\n"+
			"  pause p50    %8.0f ms\n"+
			"  pause p99    %8.0f ms   (target: within %s)\n"+
			"  no pause over%8.0f ms   (target: %s)",
			tables, rate, changesPerTransaction, pauses[math.Inf(1)], took.Seconds(), drainTarget,
			milliseconds(calm[len(calm)-1]), milliseconds(left[len(left)-1]), milliseconds(stayed[len(stayed)-1]),
			milliseconds(calm[len(calm)/2]), milliseconds(left[len(left)/2]), milliseconds(stayed[len(stayed)/2]),
			p50, p99, pauseP99Target, longest, pauseTarget)
		b.ReportMetric(0, "ns/op") // most of it is preparation
		b.ReportMetric(took.Seconds(), "drain-s")
		b.ReportMetric(milliseconds(calm[len(calm)-1]), "lag-before-ms")
		b.ReportMetric(milliseconds(largest), "lag-during-ms")
		b.ReportMetric(p50, "pause-p50-ms")
		b.ReportMetric(p99, "pause-p99-ms")
		b.ReportMetric(longest, "pause-max-ms") // the bound of the metric that none is over
		c.up.stop()
		source.Kill()
		sink.Kill()
	}
}

// awaitSameRows waits until both sides are the same, row by row.
func awaitSameRows(b *testing.B, source, sink *testenv.MariaDB) {
	b.Helper()
	from, to := source.Open("app"), sink.Open("app")
	defer from.Close()
	defer to.Close()
	want, err := contents(from)
	if err != nil {
		b.Fatal(err)
	}
	var bad []string
	for deadline := time.Now().Add(patience); ; {
		got, err := contents(to)
		if err != nil {
			b.Fatal(err)
		}
		if bad = differences(want, got); len(bad) == 0 {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%d of %d tables differ:\n%s", len(bad), len(want), strings.Join(bad[:min(len(bad), 20)], "\n"))
		}
	}
}

// BenchmarkScale is how placing and draining, and memory, grow with the number of tables and of changefeeds. Changes are few and
// made up, and thrown away.
func BenchmarkScale(b *testing.B) {
	tables, changefeeds := []int{1000, 10_000, 100_000}, []int{10, 100, 1000}
	if testing.Short() {
		tables, changefeeds = tables[:1], changefeeds[:1]
	}
	for _, n := range tables {
		b.Run(fmt.Sprintf("tables=%d", n), func(b *testing.B) { benchScale(b, 1, n, 1) })
	}
	for _, n := range changefeeds {
		b.Run(fmt.Sprintf("changefeeds=%d", n), func(b *testing.B) { benchScale(b, n, 10, 1) })
	}
	if n := changefeeds[len(changefeeds)-1]; !testing.Short() {
		b.Run(fmt.Sprintf("changefeeds=%d/batch=16", n), func(b *testing.B) { benchScale(b, n, 10, 16) })
	}
}

// scaleLimit bounds how long something large may take.
const scaleLimit = 5 * time.Minute

// benchScale places changefeeds with some tables each on three nodes and drains one of them, so many maintainers at a time.
func benchScale(b *testing.B, changefeeds, tables, batch int) {
	all := int64(changefeeds * tables)
	for b.Loop() {
		c := startCluster(b, testenv.EbbPlain(b), 3)
		c.must("settings", "set", fmt.Sprintf("drain.maintainerBatchSize=%d", batch))
		idle := map[string]float64{}
		for _, name := range append([]string{"apiserver"}, trio...) {
			idle[name] = c.resident(b, name)
		}
		began := time.Now()
		createIdleFeeds(b, c, changefeeds, tables)
		within(b, scaleLimit, "all dispatchers to run", func() bool {
			var n float64
			for _, name := range trio {
				n += total(scrape(b, c, name), "ebb_changefeed_dispatchers")
			}
			return int64(n) == all
		})
		placed := time.Since(began)
		var on map[string]int64
		within(b, scaleLimit, "all dispatchers to be counted", func() bool {
			var n int64
			n, on = placedTables(b, c)
			return n == all
		})
		time.Sleep(time.Duration(sized(15, 1)) * time.Second) // what is measured is memory at rest
		leader, maintainer := c.awaitLeader(""), feedOf(b, c, idleFeed(0)).Placement().Node
		grown := 0.0
		for _, name := range trio {
			grown += c.resident(b, name) - idle[name]
		}
		plain := others(others(trio, leader), maintainer)[0] // with one changefeed it has tables only
		perTable := (c.resident(b, plain) - idle[plain]) * (1 << 20) / float64(on[plain])
		server := c.resident(b, "apiserver")
		target := maintainer
		if changefeeds > 1 {
			target = others(trio, leader)[0]
		}
		c.apart(target)
		took := drainAway(b, c, target, scaleLimit)
		b.Logf("%d changefeeds of %d tables on three nodes:\n"+
			"  all dispatchers ran after   %8.1f s\n"+
			"  a node was drained in       %8.1f s, with %d dispatchers, %d maintainers at a time\n"+
			"  memory per idle table       %8.0f bytes on a node that does not coordinate, %.0f over all nodes\n"+
			"  memory per idle changefeed  %8.0f KiB over all nodes\n"+
			"  API server                  %8.0f MiB, %.0f before",
			changefeeds, tables, placed.Seconds(), took.Seconds(), on[target], batch, perTable, grown*(1<<20)/float64(all),
			grown*(1<<10)/float64(changefeeds), server, idle["apiserver"])
		b.ReportMetric(0, "ns/op") // most of it is preparation
		b.ReportMetric(placed.Seconds(), "placed-s")
		b.ReportMetric(took.Seconds(), "drain-s")
		b.ReportMetric(perTable, "node-B/table")
		b.ReportMetric(grown*(1<<20)/float64(all), "all-B/table")
		b.ReportMetric(server, "apiserver-MiB")
		c.up.stop()
	}
}

func idleFeed(i int) string { return fmt.Sprintf("cf%04d", i) }

// createIdleFeeds makes changefeeds to which one change a second happens.
func createIdleFeeds(b *testing.B, c *cluster, changefeeds, tables int) {
	b.Helper()
	todo := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range todo {
				err := c.client.Create(context.Background(), &v1alpha1.Changefeed{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: idleFeed(i)},
					Spec:       v1alpha1.ChangefeedSpec{Source: fmt.Sprintf("datagen://?tables=%d&rate=1&seed=%d", tables, i), Sink: "blackhole://"},
				})
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range changefeeds {
		todo <- i
	}
	close(todo)
	wg.Wait()
}
