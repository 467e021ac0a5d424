package e2e

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlhistory"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// Outcome is how a history ended.
type outcome string

const (
	equal    outcome = "equal"   // both sides are the same
	rejected outcome = "refused" // the changefeed failed with an error that names the statement, and the documentation lists it
	failed   outcome = "failed"  // it failed with an error, and nothing says that it may
	differs  outcome = "differs" // it says that everything is at the sink, and the sides differ
	wedged   outcome = "wedged"  // it reached neither the end nor an error
)

// bad outcomes fail a test.
func (o outcome) bad() bool { return o == failed || o == differs || o == wedged }

// verdict is an outcome, the statements that the source executed, and what is wrong.
type verdict struct {
	outcome
	statements []sqlhistory.Statement
	refusedSQL []string // statements that a server refused
	detail     string
	forward    v1alpha1.ChangefeedForward // with which the changefeed began
	routed     bool
	leaves     omits
}

// omits is what a changefeed leaves out: columns, rows, both, or nothing.
type omits string

const (
	omitsColumns omits = "columns"
	omitsRows    omits = "rows"
	omitsBoth    omits = "both"
)

// columns and rows say what is left out.
func (o omits) columns() bool { return o == omitsColumns || o == omitsBoth }
func (o omits) rows() bool    { return o == omitsRows || o == omitsBoth }

const (
	// historyLimit is how long a checkpoint may stand still after the last statement, and shrinkLimit the same for a smaller history.
	historyLimit = patience
	shrinkLimit  = 35 * time.Second
	// shrinkErrorLimit is how long a smaller history may have the same error. Others have historyLimit for it: on a busy machine a lease
	// in doubt is an error for a while.
	shrinkErrorLimit = 12 * time.Second
	// histories run beside each other: each waits for its checkpoint, which is written every ten seconds, most of the time.
	besideEachOther = 16
)

// historyReferee executes histories on a pair of servers, with a changefeed for each, and compares both sides.
type historyReferee struct {
	*cluster
	source, sink *testenv.MariaDB
	from, to     *sql.DB
	// quiet is held by histories that end the changefeeds of others, alone.
	quiet sync.RWMutex
	// names makes the schemas of smaller histories distinct.
	names atomic.Int64
	// slots bounds how many histories run beside each other.
	slots chan struct{}
	// outages: servers are killed meanwhile. A history ends with the first statement that the source does not answer.
	outages bool
}

// newHistoryReferee starts a pair and a cluster.
func newHistoryReferee(t *testing.T, timing lease.Timing) *historyReferee {
	t.Helper()
	f := &historyReferee{slots: make(chan struct{}, besideEachOther), source: testenv.StartMariaDB(t, "--max-connections=1000"), sink: testenv.StartMariaDB(t, "--server-id=2", "--max-connections=1000")}
	program := testenv.Ebb
	if os.Getenv("EBB_HISTORIES_PLAIN") == "1" { // without the race detector: several times as many histories in the same time
		program = testenv.EbbPlain
	}
	f.cluster = newCluster(t, program(t))
	f.timing = timing
	startNodes(t, f.cluster, 3)
	if err := os.MkdirAll(f.dir.Credentials(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.dir.Credentials(), "pair"), []byte(f.source.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.from, f.to = f.source.Open(""), f.sink.Open("")
	t.Cleanup(func() { f.from.Close(); f.to.Close() })
	return f
}

// script is where statements come from.
type script struct {
	name string
	// next is the next statement, and done says that the source executed it.
	next func() (sqlhistory.Statement, bool)
	done func(sqlhistory.Statement)
	// late: the script says itself when the changefeed starts.
	late bool
	// snapshot: the changefeed copies what there is when it starts.
	snapshot bool
	// forward is whether rows are forwarded as they were logged, and turns after how many statements that is switched.
	forward v1alpha1.ChangefeedForward
	turns   []int
	// routed: tables have other names at the sink.
	routed bool
	// leaves is what is left out.
	leaves omits
	// strict: every statement is needed.
	strict bool
	pace   time.Duration // after each statement
	// limit is how long the checkpoint may stand still after the last statement, and errorLimit how long with the same error.
	limit, errorLimit time.Duration
}

// scriptOf is a script of fixed statements.
func scriptOf(name string, statements []sqlhistory.Statement) script {
	rest := statements
	return script{
		name: name, limit: historyLimit, errorLimit: historyLimit, forward: fixedForward(),
		routed: routes(), strict: true,
		late: slices.ContainsFunc(statements, func(s sqlhistory.Statement) bool { return s.Place == sqlhistory.Start }),
		next: func() (s sqlhistory.Statement, ok bool) {
			if len(rest) == 0 {
				return s, false
			}
			s, rest = rest[0], rest[1:]
			return s, true
		},
		done: func(sqlhistory.Statement) {},
	}
}

// scriptOfSeed is the random script of a seed: some begin before their changefeed, some are slow. EBB_HISTORIES_FORWARD goes before forward.
func scriptOfSeed(seed uint64, without map[sqlhistory.Form]bool, forward string) (script, *sqlhistory.Generator) {
	leaves := leavesOut(seed)
	if leaves.rows() {
		without = maps.Clone(without)
		for _, f := range changesRowsAtRandom {
			without[f] = true
		}
	}
	g := sqlhistory.New(seed, without)
	if leaves.columns() {
		g.LeavesOut()
	}
	length, r := g.Length(), rand.New(rand.NewPCG(seed, 3))
	s := script{name: fmt.Sprintf("h%d", seed), limit: historyLimit, errorLimit: historyLimit, late: true, done: g.Done, pace: []time.Duration{0, 0, 30 * time.Millisecond}[r.IntN(3)]}
	left, start := length, length
	if r.IntN(6) == 0 && !without[startsLate] {
		start = length - r.IntN(length)
	}
	s.forward, s.turns = forwards(seed, length, cmp.Or(os.Getenv("EBB_HISTORIES_FORWARD"), forward))
	s.routed, s.leaves = routes(), leaves
	events := skips(seed, length)
	if copiesFirst(r) {
		s.snapshot, start = true, length-r.IntN(length)
	}
	s.next = func() (sqlhistory.Statement, bool) {
		if left == start {
			start = -1
			st := sqlhistory.Statement{Place: sqlhistory.Start}
			if left < length {
				st.Forms = []sqlhistory.Form{startsLate}
			}
			return st, true
		}
		if left == 0 {
			return sqlhistory.Statement{}, false
		}
		if place, ok := events[left]; ok && start < 0 {
			delete(events, left)
			return sqlhistory.Statement{Place: place}, true
		}
		left--
		return g.Next(), true
	}
	return s, g
}

// copiesFirst says whether the changefeed of a history starts in its middle and copies what there is then: each does with
// EBB_HISTORIES_SNAPSHOT=1, and a quarter in the long form.
func copiesFirst(r *rand.Rand) bool {
	return os.Getenv("EBB_HISTORIES_SNAPSHOT") == "1" || testlength.Long() && r.IntN(4) == 0
}

// forwards says whether the changefeed of a history forwards rows as they were logged, and after which statements it switches.
func forwards(seed uint64, length int, how string) (first v1alpha1.ChangefeedForward, turns []int) {
	if how == "mix" {
		how = []string{"on", "off", "switch"}[seed%3]
	}
	switch how {
	case "on":
		return v1alpha1.ForwardAuto, nil
	case "switch":
		r := rand.New(rand.NewPCG(seed, 5))
		turns = []int{r.IntN(length), r.IntN(length)}
		return []v1alpha1.ChangefeedForward{v1alpha1.ForwardAuto, v1alpha1.ForwardNever}[r.IntN(2)], turns
	}
	return v1alpha1.ForwardNever, nil
}

// routes says whether the tables of histories have other names at the sink: with EBB_HISTORIES_ROUTE=1.
func routes() bool { return os.Getenv("EBB_HISTORIES_ROUTE") == "1" }

// leavesOut says what the changefeed of a history leaves out. None does without EBB_HISTORIES_LEAVE_OUT: with columns, rows or both all do,
// and with mix a third each.
func leavesOut(seed uint64) omits {
	how := omits(os.Getenv("EBB_HISTORIES_LEAVE_OUT"))
	if how == "mix" {
		how = []omits{omitsColumns, omitsRows, omitsBoth}[seed%3]
	}
	return how
}

// changesRowsAtRandom are forms that change the column by which rows are left out where it is not the key, or that number rows, or cascade.
var changesRowsAtRandom = []sqlhistory.Form{
	"key: none", "key: of another type", "key: unique nullable", "key: auto increment", "alter: drop primary key", "alter: add primary key", "alter: ignore", "update: key of another type",
	"create: foreign key", "alter: foreign key", "create: as select", "period", "sequence: default", "column: default expression",
}

// skips are after how many statements transactions are skipped, and the changefeed is resumed at a position: with EBB_HISTORIES_SKIP=1.
func skips(seed uint64, length int) map[int]sqlhistory.Place {
	if os.Getenv("EBB_HISTORIES_SKIP") != "1" {
		return nil
	}
	r := rand.New(rand.NewPCG(seed, 7))
	return map[int]sqlhistory.Place{1 + r.IntN(length): sqlhistory.Skip, 1 + r.IntN(length): sqlhistory.ResumeAfter}
}

// routedAffix is what the names of schemas and tables have more at the sink than at the source, where they are routed.
const routedAffix = "_rtd"

// atSink is the name of a schema at the sink.
func (r *run) atSink(schema string) string {
	schema = sqlhistory.In(schema, r.name)
	if r.routed {
		return schema + routedAffix
	}
	return schema
}

// fixedForward is whether fixed histories forward rows: with EBB_HISTORIES_FORWARD=on.
func fixedForward() v1alpha1.ChangefeedForward {
	if os.Getenv("EBB_HISTORIES_FORWARD") == "on" {
		return v1alpha1.ForwardAuto
	}
	return v1alpha1.ForwardNever
}

// startsLate is the form of histories that begin before their changefeed.
const startsLate sqlhistory.Form = "changefeed: starts late"

// run is one history that is being executed.
type run struct {
	*historyReferee
	script
	statements []sqlhistory.Statement
	conn       *sql.Conn
	began      string // position from which the changefeed starts
	started    bool
	refusedSQL []string // statements that a server refused, and why: they do not belong to the history
}

// play executes a history and says how it ended. An error is one of the test itself.
func (f *historyReferee) play(ctx context.Context, s script) (v verdict, err error) {
	r := &run{historyReferee: f, script: s}
	if err := r.begin(ctx); err != nil {
		return v, err
	}
	defer r.end()
	if !s.late {
		if err := r.start(ctx); err != nil {
			return v, err
		}
	}
	taken := 0
	for {
		next, ok := s.next()
		if !ok {
			break
		}
		ok, v, err := r.step(ctx, next)
		if err != nil && f.outages && unanswered(err) {
			r.statements = append(r.statements, next) // it may have been executed
			break
		}
		if err != nil || v.outcome != "" {
			return v, err
		}
		if ok {
			s.done(next)
			r.statements = append(r.statements, next)
		}
		if slices.Contains(s.turns, taken) {
			if err := r.turn(ctx); err != nil {
				return v, err
			}
		}
		taken++
		time.Sleep(s.pace) // a rate, not a wait
	}
	// A history may end between LOCK TABLES and UNLOCK TABLES, and the comparison would wait for it.
	if _, err := r.conn.ExecContext(ctx, "UNLOCK TABLES"); err != nil && unanswered(err) && !f.outages {
		return v, err
	}
	return r.await(ctx, true)
}

// begin makes what exists before the history, on both sides.
func (r *run) begin(ctx context.Context) (err error) {
	setup := []string{"CREATE DATABASE " + sqlhistory.First, "CREATE DATABASE " + sqlhistory.Outside}
	for _, db := range []*sql.DB{r.from, r.to} {
		for _, s := range setup {
			if _, err := db.ExecContext(ctx, sqlhistory.In(s, r.name)); err != nil {
				return err
			}
		}
	}
	if r.routed {
		if _, err := r.to.ExecContext(ctx, "CREATE DATABASE "+r.atSink(sqlhistory.First)); err != nil {
			return err
		}
	}
	for _, name := range sqlhistory.Kept {
		name = sqlhistory.In(name, r.name)
		if _, err := r.to.ExecContext(ctx, "CREATE TABLE "+name+" (kept INT); INSERT INTO "+name+" VALUES (1)"); err != nil {
			return err
		}
	}
	if r.conn, err = r.from.Conn(ctx); err != nil {
		return err
	}
	if _, err := r.conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 10, innodb_lock_wait_timeout = 10"); err != nil {
		return err
	}
	r.began, err = r.position(ctx)
	return err
}

// position is the sequence number of the source's last transaction.
func (r *run) position(ctx context.Context) (string, error) {
	var gtid string
	if err := r.from.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_binlog_pos").Scan(&gtid); err != nil {
		return "", err
	}
	return gtid[strings.LastIndex(gtid, "-")+1:], nil
}

// start creates the changefeed and waits until it runs.
func (r *run) start(ctx context.Context) error {
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: r.name}, Spec: v1alpha1.ChangefeedSpec{
		Source: "mysql://" + r.source.User + "@" + r.source.Address, SourcePasswordFile: "pair",
		Sink: "mysql://" + r.sink.User + "@" + r.sink.Address, SinkPasswordFile: "pair",
		Filter: r.filter(), StartPosition: r.began, Workers: 2, Forward: r.forward,
	}}
	if r.routed {
		cf.Spec.Routing = []v1alpha1.ChangefeedRoute{{Match: r.name + "_*.*", Schema: "{schema}" + routedAffix, Table: "{table}" + routedAffix}}
	}
	rule := v1alpha1.ChangefeedLeaveOut{Match: r.name + "_*.*"}
	if r.leaves.columns() {
		rule.Columns = sqlhistory.LeftOutColumns()
	}
	if r.leaves.rows() {
		rule.Rows = sqlhistory.LeftOutRows
	}
	if r.leaves != "" {
		cf.Spec.LeaveOut = []v1alpha1.ChangefeedLeaveOut{rule}
	}
	if r.snapshot {
		cf.Spec.StartPosition, cf.Spec.Snapshot = "", &v1alpha1.ChangefeedSnapshot{}
	}
	if err := r.alignDatabase(ctx); err != nil {
		return err
	}
	r.started = true
	if err := r.insist(func() error { return r.client.Create(ctx, cf.DeepCopy()) }); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return r.awaitState(ctx, v1alpha1.ChangefeedRunning)
}

func (r *run) feed(ctx context.Context) (*v1alpha1.Changefeed, error) {
	cf := &v1alpha1.Changefeed{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: "default", Name: r.name}, cf)
	return cf, err
}

// awaitState waits for a state, or for the changefeed to fail.
func (r *run) awaitState(ctx context.Context, want v1alpha1.ChangefeedState) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		cf, err := r.feed(ctx)
		if err == nil && (cf.Status.State == want || cf.Status.State == v1alpha1.ChangefeedFailed) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not %s: %v, %+v", r.name, want, err, cf.Status)
		}
	}
}

// step takes one step, and says whether it belongs to the history: what the source refuses does not.
func (r *run) step(ctx context.Context, s sqlhistory.Statement) (ok bool, v verdict, err error) {
	if !r.started && slices.Contains([]sqlhistory.Place{sqlhistory.Wait, sqlhistory.Pause, sqlhistory.Resume, sqlhistory.Skip, sqlhistory.ResumeAfter}, s.Place) {
		return false, v, nil // there is no changefeed yet
	}
	switch s.Place {
	case sqlhistory.AtSource:
		ok, err := r.execute(ctx, r.conn, s.SQL)
		return ok, v, err
	case sqlhistory.AtSink:
		if r.routed {
			return false, v, nil // its tables have other names
		}
		ok, err := r.execute(ctx, r.to, s.SQL)
		return ok, v, err
	case sqlhistory.Begin:
		r.began, err = r.position(ctx)
		return true, v, err
	case sqlhistory.Start:
		return true, v, r.start(ctx)
	case sqlhistory.Wait:
		v, err := r.await(ctx, false)
		if v.outcome == equal {
			v.outcome = ""
		}
		return true, v, err
	case sqlhistory.Pause:
		return true, v, r.want(ctx, v1alpha1.ChangefeedPause, v1alpha1.ChangefeedPaused)
	case sqlhistory.Resume:
		return true, v, r.want(ctx, v1alpha1.ChangefeedRun, v1alpha1.ChangefeedRunning)
	case sqlhistory.Skip, sqlhistory.ResumeAfter:
		return r.passOver(ctx, s.Place)
	}
	return false, v, fmt.Errorf("there is no place %q", s.Place)
}

// passOver executes transactions on both sides which the changefeed leaves out: it skips one, or is resumed after several. If it did not, it
// would fail at the sink, which has the rows and columns already.
func (r *run) passOver(ctx context.Context, place sqlhistory.Place) (ok bool, v verdict, err error) {
	if !r.started || r.routed || r.leaves != "" {
		return false, v, nil // the statements are written for tables that are the same on both sides
	}
	conn, err := r.from.Conn(ctx)
	if err != nil {
		return false, v, err
	}
	defer conn.Close()
	if ok, err := r.execute(ctx, conn, "SET STATEMENT lock_wait_timeout=10 FOR CREATE TABLE IF NOT EXISTS {a}.passed (id INT PRIMARY KEY)"); !ok || err != nil {
		return false, v, err // its schema was dropped, or is locked
	}
	if v, err = r.await(ctx, false); err != nil || v.outcome != equal {
		return false, v, err
	}
	v = verdict{}
	if cf, err := r.feed(ctx); err != nil || cf.Status.State != v1alpha1.ChangefeedRunning {
		return false, v, err
	}
	if err := r.want(ctx, v1alpha1.ChangefeedPause, v1alpha1.ChangefeedPaused); err != nil {
		return false, v, err
	}
	n := r.names.Add(1)
	list := []string{fmt.Sprintf("INSERT INTO {a}.passed (id) VALUES (%d)", n)}
	if n%2 == 0 {
		list = []string{fmt.Sprintf("ALTER TABLE {a}.passed ADD c%d INT DEFAULT 5", n)}
	}
	if place == sqlhistory.ResumeAfter {
		list = append(list, fmt.Sprintf("INSERT INTO {a}.passed (id) VALUES (-%d), (-%d)", n, n+1000000))
	}
	for _, text := range list {
		for _, db := range []interface {
			ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
		}{conn, r.to} {
			if _, err := db.ExecContext(ctx, sqlhistory.In(text, r.name)); err != nil {
				return false, v, fmt.Errorf("%s: %w", text, err)
			}
		}
	}
	var gtid string
	if err := conn.QueryRowContext(ctx, "SELECT @@last_gtid").Scan(&gtid); err != nil {
		return false, v, err
	}
	key := types.NamespacedName{Namespace: "default", Name: r.name}
	if place == sqlhistory.ResumeAfter {
		if _, err := changefeed.ResumeFrom(ctx, r.client, key, gtid, true); err != nil {
			return false, v, err
		}
		return true, v, r.awaitState(ctx, v1alpha1.ChangefeedRunning)
	}
	if _, err := changefeed.Skip(ctx, r.client, key, gtid); err != nil {
		return false, v, err
	}
	return true, v, r.want(ctx, v1alpha1.ChangefeedRun, v1alpha1.ChangefeedRunning)
}

// execute executes a statement and says whether the server accepted it. One that met the locks of somebody else is tried again, where a
// history needs each of its statements.
func (r *run) execute(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, text string) (ok bool, err error) {
	// A deadlock ends the whole transaction, of which this may be a part; a statement that has waited for too long ends alone.
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		_, err = db.ExecContext(ctx, sqlhistory.In(text, r.name))
		if err == nil || !r.strict || !locked(err) || time.Now().After(deadline) {
			break
		}
	}
	switch {
	case err == nil:
		return true, nil
	case unanswered(err):
		return false, fmt.Errorf("%s: %w", text, err)
	}
	r.refusedSQL = append(r.refusedSQL, fmt.Sprintf("%s: %v", text, err))
	return false, nil
}

// want pauses or resumes the changefeed.
func (r *run) want(ctx context.Context, wish v1alpha1.ChangefeedWish, state v1alpha1.ChangefeedState) error {
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"state":"`+string(wish)+`"}}`))
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: r.name}}
	if err := r.insist(func() error { return r.client.Patch(ctx, cf, patch) }); err != nil {
		return err
	}
	return r.awaitState(ctx, state)
}

// turn switches whether rows are forwarded, which applies when the changefeed is paused and resumed. A history that has paused it resumes
// it later.
func (r *run) turn(ctx context.Context) error {
	if !r.started {
		return nil
	}
	cf, err := r.feed(ctx)
	if err != nil {
		return nil // a server is away
	}
	wish := cf.Spec.State
	if err := r.want(ctx, v1alpha1.ChangefeedPause, v1alpha1.ChangefeedPaused); err != nil {
		return err
	}
	next := v1alpha1.ForwardAuto
	if cf.Spec.Forward == v1alpha1.ForwardAuto {
		next = v1alpha1.ForwardNever
	}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"forward":"`+string(next)+`"}}`))
	if err := r.insist(func() error { return r.client.Patch(ctx, cf.DeepCopy(), patch) }); err != nil {
		return err
	}
	if wish == v1alpha1.ChangefeedPause {
		return nil
	}
	return r.want(ctx, v1alpha1.ChangefeedRun, v1alpha1.ChangefeedRunning)
}

// insist repeats what failed because a server was away, if servers are killed meanwhile.
func (r *run) insist(do func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := do()
		if err == nil || !r.outages || time.Now().After(deadline) || apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
			return err
		}
	}
}

// await waits until the changefeed has reached the source's position, and compares both sides in the end.
func (r *run) await(ctx context.Context, last bool) (verdict, error) {
	var text string
	err := r.insist(func() (err error) { text, err = r.position(ctx); return err })
	if err != nil {
		return verdict{}, err
	}
	position, _ := strconv.ParseInt(text, 10, 64)
	end := func(o outcome, format string, args ...any) (verdict, error) {
		return verdict{outcome: o, statements: r.statements, refusedSQL: r.refusedSQL, detail: fmt.Sprintf(format, args...), forward: r.forward, routed: r.routed, leaves: r.leaves}, nil
	}
	deadline := time.Now().Add(r.limit)
	var same v1alpha1.ChangefeedStatus
	since := time.Now()
	for ; ; time.Sleep(150 * time.Millisecond) {
		cf, err := r.feed(ctx)
		if err != nil {
			if time.Now().After(deadline) {
				return verdict{}, err
			}
			continue
		}
		st := cf.Status
		if st.Checkpoint != same.Checkpoint {
			deadline = time.Now().Add(r.limit)
		}
		if st.Error != same.Error || st.Checkpoint != same.Checkpoint {
			same, since = st, time.Now()
		}
		switch {
		case st.State == v1alpha1.ChangefeedFailed:
			if why, ok := r.mayRefuse(st.Error); !ok {
				return end(failed, "%s (%s)", st.Error, why)
			}
			return end(rejected, "%s", st.Error)
		case st.State == v1alpha1.ChangefeedPaused:
			return end(equal, "")
		case st.Checkpoint >= position && (!r.snapshot || st.Snapshot != nil && st.Snapshot.FinishedAt != nil):
			if !last {
				return end(equal, "")
			}
			var found []string
			err := r.insist(func() (err error) { found, err = r.compare(ctx); return err })
			if errors.Is(err, errSkipped) && time.Now().Before(deadline) {
				continue
			}
			if err != nil {
				return verdict{}, err
			}
			if len(found) > 0 {
				return end(differs, "%s", strings.Join(found, "\n"))
			}
			return end(equal, "")
		case st.Error != "" && time.Since(since) > r.errorLimit, time.Now().After(deadline):
			return end(wedged, "checkpoint %d of %d, error %q, slowest %q", st.Checkpoint, position, st.Error, st.Slowest)
		}
	}
}

// refusals are what a changefeed may refuse: words of docs/changefeeds.md that list it, and what the error looks like. Without the words
// on the page a refusal is a failure.
var refusals = []struct {
	documented string
	error      *regexp.Regexp
	ofTable    bool // the error names a table instead of a statement
}{
	{"every other statement, and those with clauses that are not known", regexp.MustCompile(`(?s)statement ".*":? .*(not known|not supported|unknown)`), false},
	{"`CREATE OR REPLACE DATABASE` of a database", regexp.MustCompile(`(?is)statement ".*OR REPLACE (DATABASE|SCHEMA)`), false},
	{"executable comments of versions after 10.6", regexp.MustCompile(`(?s)statement ".*/\*M?!1`), false},
	{"what brings a table in from outside the filter", regexp.MustCompile(`(?s)statement ".*outside the filter`), false},
	{"CREATE of a name that a table has at the sink which was renamed out of the filter", regexp.MustCompile(`table .* was renamed out of the filter and stays at the sink`), true},
	{"CONVERT PARTITION to a table outside the filter", regexp.MustCompile(`(?s)statement ".*outside the filter`), false},
	{"names in a statement that may depend on them", regexp.MustCompile(`(?s)statement ".*tables have other names at the sink`), false},
	{"DDL whose effect on them is not certain", regexp.MustCompile(`(?s)statement ".*(is|are) left out`), false},
	{"If another column of the expression changes in a row", regexp.MustCompile(`table .* column .* of a row has changed, and rows are left out by it`), true},
	{"DDL that joins tables by a foreign key that cascades, before they are copied", regexp.MustCompile(`table .* was joined with others by a cascading foreign key before its initial copy was whole`), true},
	{"rows of tables that they join cannot be left out", regexp.MustCompile(`rows of table .* are left out, and foreign keys that cascade join it with others`), true},
	{"What cannot be left out is refused before the changefeed begins", regexp.MustCompile(`leave out: table .*: `), true},
	{"DROP of a constraint IF EXISTS of a table whose own name is another", regexp.MustCompile(`(?s)statement ".*it drops a constraint IF EXISTS`), false},
	{"ALTER TABLE that adds a column with a default that is not the same on every server", regexp.MustCompile(`(?s)statement ".*(the default of a column that it adds|the expression of a stored column that it computes) has`), false},
	{"a statement that failed at the source and is in the log all the same", regexp.MustCompile(`(?s)statement ".*it failed at the source and is in the log`), false},
	{"ALTER TABLE that numbers several rows by AUTO_INCREMENT", regexp.MustCompile(`(?s)statement ".*table .* has no key, and which row gets which number`), false},
	{"if table b existed before it", regexp.MustCompile(`(?s)statement ".*it is not known which tables it renames`), false},
	{"text that has a character set before it", regexp.MustCompile(`(?s)statement ".*it has text with the character set .* before it`), false},
	{"it has a stored generated column whose value a session of the source has cut", regexp.MustCompile(`table .*: a value does not fit; make the column as it is at the source, or VIRTUAL`), true},
	{"it has a stored generated column for which the sink computes another value", regexp.MustCompile(`table .* column .* is generated and stored, and would have another value`), true},
	{"`CREATE TABLE … SELECT` and `CREATE TABLE … VALUES` that was logged as a statement", regexp.MustCompile(`(?s)statement ".*it was logged as a statement, and the rows that it selects`), false},
	{"ALTER, TRUNCATE and LIKE that used something which only their session has", regexp.MustCompile(`(?s)statement ".*it may be about a temporary table`), false},
	{"XA transactions with PREPARE that change tables inside the filter", regexp.MustCompile(`is an XA transaction on table .* that is prepared first`), true},
	{"it has triggers at the sink", regexp.MustCompile(`table .* has trigger .* which would change rows`), true},
	{"its engine has no transactions", regexp.MustCompile(`table .* has the engine .* which has no transactions`), true},
	{"CREATE or ALTER TABLE with a foreign key that cascades between a table inside and one outside the filter", regexp.MustCompile(`(?s)statement ".*a foreign key changes rows by cascade`), false},
	{"RENAME that takes a table out of the filter which a cascading foreign key joins with one that stays", regexp.MustCompile(`(?s)statement ".*foreign key .* changes rows by cascade, and of table .* one leaves the filter`), false},
	{"it lacks a foreign key that cascades at the source", regexp.MustCompile(`foreign key .* of table .* changes rows by cascade at the source, and the sink does not have it`), true},
	{"a foreign key that cascades and joins it with a table outside the filter", regexp.MustCompile(`foreign key .* of table .* changes rows by cascade`), true},
	{"it has system versioning", regexp.MustCompile(`table .* has system versioning`), true},
	{"engines other than InnoDB, system versioning, foreign keys that cascade", regexp.MustCompile(`table .* cannot be copied`), true},
	{"definitions that the sink does not accept", regexp.MustCompile(`table .* cannot be created as it is at the source`), true},
	{"one of its rows does not fit into `max_allowed_packet` of the sink", regexp.MustCompile(`table .*: a row is longer than max_allowed_packet of the sink`), true},
	{"rows that were logged without all their columns", regexp.MustCompile(`table .*: a row is logged without all its columns`), true},
	{"INSERT, UPDATE, DELETE, LOAD DATA that were logged as statements", regexp.MustCompile(`(?i)logged as statement|binlog_format`), true},
}

// mayRefuse says whether the documentation lists a refusal. The error has to name the statement, or the table that is refused.
func (r *run) mayRefuse(text string) (why string, ok bool) {
	page, err := os.ReadFile("../../docs/changefeeds.md")
	if err != nil {
		return err.Error(), false
	}
	listed := false
	for _, c := range refusals {
		if !c.error.MatchString(text) || !strings.Contains(string(page), c.documented) {
			continue
		}
		if c.ofTable {
			return "", true
		}
		listed = true
	}
	if !listed {
		return "docs/changefeeds.md does not list this", false
	}
	squeezed := strings.Join(strings.Fields(text), " ")
	for _, s := range r.statements {
		words := strings.Join(strings.Fields((&stream.DDL{Statement: sqlhistory.In(s.SQL, r.name)}).Text()), " ")
		if len(words) > 0 && strings.Contains(squeezed, words[:min(len(words), 40)]) {
			return "", true
		}
	}
	return "the error names no statement of the history", false
}

// end removes everything of the history.
func (r *run) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if r.conn != nil {
		_ = r.conn.Raw(func(any) error { return driver.ErrBadConn }) // nobody else gets its settings and locks
		r.conn.Close()
	}
	if r.started {
		_ = r.insist(func() error {
			return r.client.Delete(ctx, &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: r.name}})
		})
	}
	r.rollBackXA(ctx)
	for _, db := range []*sql.DB{r.from, r.to} {
		conn, err := db.Conn(ctx)
		if err != nil {
			continue
		}
		_, _ = conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = 10, foreign_key_checks = 0")
		for _, schema := range []string{sqlhistory.First, sqlhistory.Second, sqlhistory.Outside} {
			_, _ = conn.ExecContext(ctx, "DROP DATABASE IF EXISTS "+sqlhistory.In(schema, r.name)) // nobody looks at it any more
			_, _ = conn.ExecContext(ctx, "DROP DATABASE IF EXISTS "+r.atSink(schema))
		}
		_, _ = conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = DEFAULT, foreign_key_checks = 1")
		conn.Close()
	}
}

// rollBackXA ends transactions that the history has prepared and not ended.
func (r *run) rollBackXA(ctx context.Context) {
	rows, err := r.from.QueryContext(ctx, "XA RECOVER")
	if err != nil {
		return
	}
	defer rows.Close()
	for rows.Next() {
		var format, gtrid, bqual int
		var data string
		if rows.Scan(&format, &gtrid, &bqual, &data) == nil && strings.HasPrefix(data, r.name+"_") {
			_, _ = r.from.ExecContext(ctx, "XA ROLLBACK '"+data+"'")
		}
	}
}

// compare says where both sides differ: in tables inside the filter, and in tables of the sink outside it.
func (r *run) compare(ctx context.Context) ([]string, error) {
	first, second := sqlhistory.In(sqlhistory.First, r.name), sqlhistory.In(sqlhistory.Second, r.name)
	source, err := tablesOf(ctx, r.from, first, second, r.leaves)
	if err != nil {
		return nil, err
	}
	sink, err := tablesOf(ctx, r.to, r.atSink(sqlhistory.First), r.atSink(sqlhistory.Second), r.leaves)
	if err != nil {
		return nil, err
	}
	if r.routed {
		named := map[string]string{}
		for name, text := range sink {
			create, rows, _ := strings.Cut(text, "\n) ") // values stay as they are
			named[strings.ReplaceAll(name, routedAffix, "")] = strings.ReplaceAll(create, routedAffix, "") + "\n) " + rows
			if rows == "" { // a sequence
				named[strings.ReplaceAll(name, routedAffix, "")] = strings.ReplaceAll(text, routedAffix, "")
			}
		}
		sink = named
	}
	var found []string
	for _, name := range slices.Sorted(maps.Keys(source)) {
		if source[name] == unopened {
			delete(sink, name) // a DROP that failed has broken it, and nothing is known of it any more
			delete(source, name)
		} else if text, ok := sink[name]; !ok {
			found = append(found, name+" is missing at the sink")
		} else if text != source[name] {
			found = append(found, name+": "+firstDifference(source[name], text))
		}
	}
	keeps := slices.Contains(sqlhistory.FormsOf(r.statements), "rename: out of the filter")
	for _, name := range slices.Sorted(maps.Keys(sink)) {
		if _, ok := source[name]; !ok && !keeps {
			found = append(found, name+" is at the sink only")
		}
	}
	for _, name := range sqlhistory.Kept {
		name = sqlhistory.In(name, r.name)
		var n int
		if err := r.to.QueryRowContext(ctx, "SELECT SUM(kept) FROM "+name).Scan(&n); err != nil || n != 1 {
			found = append(found, fmt.Sprintf("%s, which is outside the filter, was changed at the sink: %d, %v", name, n, err))
		}
	}
	return found, nil
}

// firstDifference is the first line that differs.
func firstDifference(a, b string) string {
	left, right := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(left), len(right)) {
		x, y := "(end)", "(end)"
		if i < len(left) {
			x = left[i]
		}
		if i < len(right) {
			y = right[i]
		}
		if x != y {
			return fmt.Sprintf("%d and %d lines, first difference:\n    source %.300s\n    sink   %.300s", len(left), len(right), x, y)
		}
	}
	return "the same"
}

var autoIncrementOption = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// tablesOf is SHOW CREATE and every row of all replicated tables in the two schemas of a history, by their names, without what is left out.
func tablesOf(ctx context.Context, db *sql.DB, first, second string, leaves omits) (map[string]string, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer conn.ExecContext(ctx, "SET NAMES utf8mb4, SESSION sql_mode = DEFAULT")
	if _, err := conn.ExecContext(ctx, "SET NAMES utf8mb4, SESSION sql_mode = ''"); err != nil {
		return nil, err
	}
	// Conditions on both lists keep the server from opening the tables of other histories, which are changed meanwhile.
	rows, err := conn.QueryContext(ctx, `SELECT t.table_schema, t.table_name, c.column_name, c.data_type
		FROM information_schema.tables t LEFT JOIN information_schema.columns c ON c.table_schema IN (?, ?) AND BINARY t.table_schema = c.table_schema AND BINARY t.table_name = c.table_name
		WHERE t.table_schema IN (?, ?) AND COALESCE(t.table_type, '') <> 'VIEW' ORDER BY 1, 2, c.ordinal_position`, first, second, first, second)
	if err != nil {
		return nil, err
	}
	columns, tables := map[string][]string{}, map[string]string{}
	for rows.Next() {
		var schema, table string
		var shown, dataType sql.NullString
		if err := rows.Scan(&schema, &table, &shown, &dataType); err != nil {
			rows.Close()
			return nil, err
		}
		if schema == first && strings.HasPrefix(table, sqlhistory.Skipped) {
			continue
		}
		if !shown.Valid {
			tables[schema+"."+backquoted(table)] = unopened
			continue
		}
		column, kind := shown.String, dataType.String
		if leaves.columns() && sqlhistory.LeftOut(column) {
			continue
		}
		column = backquoted(column)
		if kind == "float" { // its text has fewer digits than its value
			column = "CAST(" + column + " AS DOUBLE)"
		}
		full := schema + "." + backquoted(table)
		columns[full] = append(columns[full], column)
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if err := noneSkipped(ctx, conn); err != nil {
		return nil, err
	}
	for table, list := range columns {
		where := ""
		if leaves.rows() && slices.Contains(list, "`id`") {
			where = " WHERE NOT COALESCE(" + sqlhistory.LeftOutRows + ", 0)"
		}
		if tables[table], err = tableText(ctx, conn, table, strings.Join(list, ", "), where); err != nil {
			return nil, fmt.Errorf("%s: %w", table, err)
		}
		if leaves.columns() {
			tables[table] = withoutLeftOut(tables[table])
		}
	}
	return tables, nil
}

// plainKey is the line of a key that is not unique in SHOW CREATE TABLE, and hiddenColumn the one of a column.
var plainKey, hiddenColumn = regexp.MustCompile("^  (FULLTEXT |SPATIAL )?KEY "), regexp.MustCompile("^  `([^`]*)` ")

// withoutLeftOut is the text of a table without columns that are left out, and without keys that are not unique: of those with such a
// column, the source may have a part, and the sink has none.
func withoutLeftOut(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if found := hiddenColumn.FindStringSubmatch(line); plainKey.MatchString(line) || found != nil && sqlhistory.LeftOut(found[1]) {
			continue
		}
		lines = append(lines, strings.TrimSuffix(strings.TrimRight(line, "\n"), ","))
	}
	return strings.Join(lines, "\n")
}

// unopened is the text of a table that its server lists and cannot open. DROP TABLE NOWAIT of a table with partitions that meets locks of other
// DDL fails, writes nothing to the log, and leaves such a table.
const unopened = "cannot be opened"

// Codes of warnings about what cannot be opened: a view whose tables are gone, and a table whose list of partitions is.
const codeInvalidView, codeNoPartitions = 1356, 1696

// errSkipped: the server has left tables out of a list.
var errSkipped = errors.New("the list of tables may be incomplete")

// noneSkipped returns errSkipped if the list that a session has just read may be incomplete: the server leaves out what it cannot open, with a
// warning.
func noneSkipped(ctx context.Context, conn *sql.Conn) error {
	rows, err := conn.QueryContext(ctx, "SHOW WARNINGS")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var level, text string
		var code int
		if err := rows.Scan(&level, &code, &text); err != nil {
			return err
		}
		if code != codeInvalidView && code != codeNoPartitions {
			return fmt.Errorf("%w: %s %d: %s", errSkipped, level, code, text)
		}
	}
	return rows.Err()
}

func backquoted(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// tableText is SHOW CREATE of a table, and its rows in some order, one on each line.
func tableText(ctx context.Context, conn *sql.Conn, name, columns, where string) (string, error) {
	var ignored, create string
	if err := conn.QueryRowContext(ctx, "SHOW CREATE TABLE "+name).Scan(&ignored, &create); err != nil {
		return "", err
	}
	if _, err := conn.ExecContext(ctx, "SET NAMES binary"); err != nil {
		return "", err
	}
	defer conn.ExecContext(ctx, "SET NAMES utf8mb4")
	rows, err := conn.QueryContext(ctx, "SELECT "+columns+" FROM "+name+where)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return "", err
	}
	var lines []string
	for rows.Next() {
		values, into := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			return "", err
		}
		var line strings.Builder
		for _, v := range values {
			if v.Valid {
				fmt.Fprintf(&line, "%q ", v.String)
			} else {
				line.WriteString("NULL ")
			}
		}
		lines = append(lines, line.String())
	}
	slices.Sort(lines)
	return autoIncrementOption.ReplaceAllString(create, "") + "\n" + strings.Join(lines, "\n"), rows.Err()
}

// shrink makes a history that ended badly as small as it can.
func (f *historyReferee) shrink(ctx context.Context, t *testing.T, name string, v verdict) ([]sqlhistory.Statement, string) {
	detail := v.detail
	list := sqlhistory.Shrink(v.statements, func(candidates [][]sqlhistory.Statement) []bool {
		answers := make([]bool, len(candidates))
		details := make([]string, len(candidates))
		var wg sync.WaitGroup
		for i, c := range candidates {
			wg.Go(func() {
				f.slots <- struct{}{}
				defer func() { <-f.slots }()
				s := scriptOf(fmt.Sprintf("%ss%d", name, f.names.Add(1)), c)
				s.limit, s.errorLimit, s.forward, s.routed, s.leaves = shrinkLimit, shrinkErrorLimit, v.forward, v.routed, v.leaves
				got, err := f.play(ctx, s)
				answers[i], details[i] = err == nil && got.outcome == v.outcome, got.detail
			})
		}
		wg.Wait()
		if i := slices.Index(answers, true); i >= 0 {
			detail = details[i]
		}
		return answers
	})
	return list, detail
}

// disturb drains and kills nodes in turn, until the context ends.
func (f *historyReferee) disturb(ctx context.Context, t *testing.T) {
	c := &chaos{cluster: f.cluster, test: t, nodes: trio, broken: map[string]bool{}, began: time.Now(), source: f.source, sink: f.sink}
	r := rand.New(rand.NewPCG(1, 1))
	for drains := true; ctx.Err() == nil; drains = !drains {
		e := event{breakage: breakage{name: "kill node"}, hold: time.Duration(r.IntN(8000)) * time.Millisecond, pick: r.IntN(1 << 16)}
		if drains {
			e.name = "drain node"
		}
		e.target = c.choose(e)
		if err := f.disturbOnce(ctx, c, e); err != nil {
			t.Errorf("%s: %v", e.name, err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(3+r.IntN(10)) * time.Second):
		}
	}
}

// disturbOnce drains or kills a node and starts it again. Changefeeds come and go meanwhile, so what is left on a drained node is not
// looked at.
func (f *historyReferee) disturbOnce(ctx context.Context, c *chaos, e event) error {
	if e.name != "drain node" {
		return c.killNode(e)
	}
	var epoch int64
	c.await("the lease of "+e.target, func(ctx context.Context) (ok bool) { epoch, _, ok = c.epochOf(ctx, e.target); return ok })
	began := time.Now()
	out, errs, code := f.run("drain", e.target, "--wait")
	for _, reason := range []string{v1alpha1.ReasonTargetIsCoordinator, v1alpha1.ReasonCaptureNotFound, v1alpha1.ReasonSingleNode} {
		if strings.Contains(errs, "("+reason+")") { // it leads, or a busy machine has let a lease expire
			return nil
		}
	}
	c.logf("drain of %s: exit %d after %s: %s", e.target, code, time.Since(began).Round(time.Millisecond), lastLine(out+errs))
	c.await("node "+e.target+" to have ended", func(context.Context) bool { _, alive, _ := c.process(e.target); return !alive })
	c.restart(e.target, epoch)
	return nil
}

var varying = regexp.MustCompile("`[^`]*`|'[^']*'|[A-Za-z]*[0-9][A-Za-z0-9_.:`-]*")

// kind is what histories that end in the same way have in common.
func (v verdict) kind() string {
	text := varying.ReplaceAllString(v.detail, "#")
	if _, after, ok := strings.Cut(text, "error "); ok && v.outcome == wedged {
		text = after
	}
	return string(v.outcome) + ": " + text[:min(len(text), 120)]
}

// refusal is which entry of the documentation lists the error of a refused history.
func (v verdict) refusal() string {
	for _, c := range refusals {
		if c.error.MatchString(v.detail) {
			return c.documented
		}
	}
	return v.kind()
}

// report tells of a history that ended badly, as SQL that can be pasted.
func (f *historyReferee) report(ctx context.Context, t *testing.T, name, again string, v verdict, shrinks bool) {
	t.Helper()
	statements, detail := v.statements, v.detail
	if shrinks {
		statements, detail = f.shrink(ctx, t, name, v)
	}
	t.Errorf("%s %s\n%s\n%sAgain: %s", name, v.outcome, detail, sqlhistory.Script(statements, name), again)
}
