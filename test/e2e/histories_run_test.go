package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlhistory"
	"github.com/ebb-dev/ebb/internal/testlength"
)

const (
	shortHistories, longHistories = 12, 1000
	// enough is how many finished histories have each supported form in the long form.
	enough = 20
	// shrunk is how many failures of a run that look different are made smaller.
	shrunk = 4
)

// shrunkKinds is how many failures are made smaller; EBB_HISTORIES_SHRINK is another number.
func shrunkKinds() int {
	if n, err := strconv.Atoi(os.Getenv("EBB_HISTORIES_SHRINK")); err == nil {
		return n
	}
	return shrunk
}

// withKnown says that what is known to fail is run too.
func withKnown() bool { return os.Getenv("EBB_HISTORIES_ALL") == "1" }

// excluded are the forms that random histories do without.
func excluded() map[sqlhistory.Form]bool {
	out := map[sqlhistory.Form]bool{}
	if !withKnown() {
		for f := range knownToFail {
			out[f] = true
		}
	}
	return out
}

// historySeeds are the seeds of a run: EBB_HISTORIES=FROM-TO chooses others, and EBB_SEED one.
func historySeeds(t *testing.T) []uint64 {
	t.Helper()
	if text := os.Getenv("EBB_HISTORIES"); text != "" {
		var from, to uint64
		if _, err := fmt.Sscanf(text, "%d-%d", &from, &to); err != nil {
			t.Fatalf("EBB_HISTORIES=%s: %v", text, err)
		}
		var list []uint64
		for seed := from; seed <= to; seed++ {
			list = append(list, seed)
		}
		return list
	}
	list := slices.Collect(testlength.Seeds(shortHistories, longHistories))
	if !testlength.Long() && len(list) > 1 {
		list = list[:shortHistories] // the short form is the same every time
	}
	return list
}

// Random histories of statements, with a changefeed each, while nodes are drained and killed: in the end both sides are the same, or
// the changefeed has failed with an error that names the statement.
func TestRandomHistoriesEndEqual(t *testing.T) {
	beside(t, heavy)
	seeds := historySeeds(t)
	f := newHistoryReferee(t, testLeases)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	disturbed, stop := context.WithCancel(ctx)
	var disturber sync.WaitGroup
	if len(seeds) > 1 && os.Getenv("EBB_HISTORIES_CALM") == "" {
		disturber.Go(func() { f.disturb(disturbed, t) })
	}
	var mu sync.Mutex
	covered, ended, refusedFor := map[sqlhistory.Form]int{}, map[outcome]int{}, map[string]int{}
	bad := map[uint64]verdict{}
	var wg sync.WaitGroup
	for _, seed := range seeds {
		f.slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-f.slots }()
			v, err := f.playSeed(ctx, seed)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
				return
			}
			ended[v.outcome]++
			if finished(ended)%50 == 0 {
				t.Logf("%d histories so far: %v", finished(ended), ended)
			}
			if v.outcome == equal {
				for _, form := range sqlhistory.FormsOf(v.statements) {
					covered[form]++
				}
			}
			if v.outcome == rejected {
				refusedFor[v.refusal()]++
				t.Logf("seed %d refused: %.300s", seed, v.detail)
			}
			if v.bad() {
				t.Logf("seed %d %s: %.600s\n%s\nleft out, because a server refused it:\n%s", seed, v.outcome, v.detail, sqlhistory.Script(v.statements, fmt.Sprintf("h%d", seed)), strings.Join(v.refusedSQL, "\n"))
				bad[seed] = v
			}
		})
	}
	wg.Wait()
	stop()
	disturber.Wait()
	kinds := map[string]bool{}
	for _, seed := range slices.Sorted(maps.Keys(bad)) {
		v := bad[seed]
		small := !kinds[v.kind()] && len(kinds) < shrunkKinds()
		kinds[v.kind()] = true
		again := fmt.Sprintf("EBB_SEED=%d go test -race -count=1 -v -run '^%s$' ./test/e2e", seed, t.Name())
		wg.Go(func() { f.report(ctx, t, fmt.Sprintf("h%d", seed), again, v, small) })
	}
	wg.Wait()
	t.Logf("%d histories: %v; the sink executed %s BINLOG statements", len(seeds), ended, f.sink.Value("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Com_binlog'"))
	for _, why := range slices.Sorted(maps.Keys(refusedFor)) {
		t.Logf("%5d refused: %s", refusedFor[why], why)
	}
	tellCoverage(t, covered)
}

func finished(ended map[outcome]int) (n int) {
	for _, count := range ended {
		n += count
	}
	return n
}

// filter is that of the changefeed.
func (r *run) filter() (list []string) {
	for _, p := range sqlhistory.Filter {
		list = append(list, sqlhistory.In(p, r.name))
	}
	return list
}

// alignDatabase gives the first database the same defaults at the sink as at the source, before it is copied. Statements of the history do so
// where the database has the same name.
func (r *run) alignDatabase(ctx context.Context) error {
	if !r.routed || !r.snapshot {
		return nil
	}
	var charset, collation string
	err := r.from.QueryRowContext(ctx, "SELECT DEFAULT_CHARACTER_SET_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = ?", sqlhistory.In(sqlhistory.First, r.name)).Scan(&charset, &collation)
	if errors.Is(err, sql.ErrNoRows) { // it was dropped
		return nil
	}
	if err == nil {
		_, err = r.to.ExecContext(ctx, "ALTER DATABASE "+r.atSink(sqlhistory.First)+" CHARACTER SET "+charset+" COLLATE "+collation)
	}
	return err
}

// playSeed plays the history of a seed, alone if it may end others.
func (f *historyReferee) playSeed(ctx context.Context, seed uint64) (verdict, error) {
	s, g := scriptOfSeed(seed, excluded(), testlength.Pick("", "mix"))
	if slices.ContainsFunc(endsOthers, g.Has) {
		f.quiet.Lock()
		defer f.quiet.Unlock()
	} else {
		f.quiet.RLock()
		defer f.quiet.RUnlock()
	}
	return f.play(ctx, s)
}

// tellCoverage prints in how many finished histories each form was. The long form wants enough of each supported one.
func tellCoverage(t *testing.T, covered map[sqlhistory.Form]int) {
	t.Helper()
	var lines []string
	for _, form := range append(sqlhistory.Forms(), startsLate) {
		note := ""
		switch why := knownToFail[form]; {
		case why != "":
			note = "  known to fail: " + why
		case sqlhistory.Rare[form]:
			note = "  may be refused"
		case testlength.Long() && covered[form] < enough:
			t.Errorf("%s is in %d finished histories", form, covered[form])
		}
		lines = append(lines, fmt.Sprintf("%5d  %s%s", covered[form], form, note))
	}
	t.Logf("finished histories by form:\n%s", strings.Join(lines, "\n"))
}

// Small histories that once lost rows.
func TestFixedHistoriesEndEqual(t *testing.T) {
	beside(t, heavy)
	f := newHistoryReferee(t, calmLeases)
	var wg sync.WaitGroup
	for i, h := range fixedHistories {
		if why := knownToFail[h.name]; why != "" && !withKnown() {
			t.Logf("%s is left out: %s", h.name, why)
			continue
		}
		statements, err := sqlhistory.Parse(h.text)
		if err != nil {
			t.Fatalf("%s: %v", h.name, err)
		}
		f.slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-f.slots }()
			s := scriptOf(fmt.Sprintf("fixed%d", i), statements)
			s.leaves, s.snapshot = h.leaves, h.snapshot
			v, err := f.play(t.Context(), s)
			want := h.ends
			if want == nil {
				want = []outcome{equal}
			}
			switch {
			case err != nil:
				t.Errorf("%s: %v", h.name, err)
			case len(v.statements) != len(statements):
				t.Errorf("%s: %d of %d statements were executed, then it was %s %s; refused: %s", h.name, len(v.statements), len(statements), v.outcome, v.detail, strings.Join(v.refusedSQL, "; "))
			case !slices.Contains(want, v.outcome):
				t.Errorf("%s %s\n%s", h.name, v.outcome, v.detail)
			}
		})
	}
	wg.Wait()
}

// TestHistoryFile plays the histories of a file, EBB_HISTORY_FILE, each after a line "=== NAME". It is for those who look for the
// reason of a failure. One whose name begins with "alone " may end the changefeeds of others, and one with "snapshot " copies what there is at
// "-- start".
func TestHistoryFile(t *testing.T) {
	path := os.Getenv("EBB_HISTORY_FILE")
	if path == "" {
		t.Skip("EBB_HISTORY_FILE is not set")
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f := newHistoryReferee(t, testLeases)
	var wg sync.WaitGroup
	for i, part := range strings.Split("\n"+string(text), "\n=== ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		statements, err := sqlhistory.Parse(body)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-f.slots }()
			if strings.HasPrefix(name, "alone ") {
				f.quiet.Lock()
				defer f.quiet.Unlock()
			} else {
				f.quiet.RLock()
				defer f.quiet.RUnlock()
			}
			s := scriptOf(fmt.Sprintf("file%d", i), statements)
			s.snapshot = strings.HasPrefix(name, "snapshot ")
			v, err := f.play(t.Context(), s)
			t.Logf("%s: %d of %d statements: %s %s %v; refused: %s", name, len(v.statements), len(statements), v.outcome, v.detail, err, strings.Join(v.refusedSQL, "; "))
			if err != nil || v.bad() {
				t.Errorf("%s: %s", name, v.outcome)
			}
		})
	}
	wg.Wait()
}

// A list of what is known to fail that names what does not exist hides nothing and helps nobody.
func TestWhatIsKnownToFailExists(t *testing.T) {
	for name, why := range knownToFail {
		fixed := slices.ContainsFunc(fixedHistories, func(h fixedHistory) bool { return h.name == name })
		if !fixed && name != startsLate && !slices.Contains(sqlhistory.Forms(), name) || why == "" {
			t.Errorf("%q: %q", name, why)
		}
	}
}
