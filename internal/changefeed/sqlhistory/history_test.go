package sqlhistory

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func script(t *testing.T, seed uint64, without map[Form]bool) string {
	t.Helper()
	return Script(Whole(seed, without), "h")
}

func TestASeedIsAlwaysTheSameHistory(t *testing.T) {
	for seed := range uint64(200) {
		if a, b := script(t, seed, nil), script(t, seed, nil); a != b {
			t.Fatalf("seed %d:\n%s\nand then:\n%s", seed, a, b)
		}
	}
}

func TestEveryFormOccurs(t *testing.T) {
	count := map[Form]int{}
	for seed := range uint64(1000) {
		for _, f := range FormsOf(Whole(seed, nil)) {
			count[f]++
		}
	}
	for _, f := range Forms() {
		want := 20
		if Rare[f] {
			want = 2
		}
		if count[f] < want {
			t.Errorf("%s occurs in %d of 1000 histories", f, count[f])
		}
	}
}

func TestAFormThatIsLeftOutDoesNotOccur(t *testing.T) {
	for _, out := range Forms() {
		if essential[out] {
			continue
		}
		for seed := range uint64(20) {
			if slices.Contains(FormsOf(Whole(seed, map[Form]bool{out: true})), out) {
				t.Errorf("seed %d has %s", seed, out)
			}
		}
	}
}

// A statement that the source refused must not change what the generator believes.
func TestARefusedStatementChangesNothing(t *testing.T) {
	g := New(1, nil)
	s := g.Next()
	if len(g.tables) != 0 {
		t.Fatalf("%d tables before the source answered", len(g.tables))
	}
	g.Next()
	g.Done(s)
	if len(g.tables) != 1 {
		t.Errorf("%d tables after %s", len(g.tables), s.SQL)
	}
}

func TestParse(t *testing.T) {
	got, err := Parse(`
		CREATE TABLE {a}.t (
			id INT);
		-- wait
		-- sink: DROP TABLE {a}.t;
		-- start
		INSERT INTO {a}.t VALUES (1);
	`)
	want := []Statement{
		{SQL: "CREATE TABLE {a}.t (\nid INT)"}, {Place: Wait}, {Place: AtSink, SQL: "DROP TABLE {a}.t"}, {Place: Start}, {SQL: "INSERT INTO {a}.t VALUES (1)"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"SELECT 1", "-- nonsense\nSELECT 1;"} {
		if got, err := Parse(bad); err == nil {
			t.Errorf("%q is %+v", bad, got)
		}
	}
}

func TestAScriptCanBePasted(t *testing.T) {
	got := Script([]Statement{{SQL: "DROP TABLE {a}.t, {x}.o ;"}, {Place: Wait}, {Place: AtSink, SQL: "TRUNCATE {b}.t"}}, "h7")
	want := "DROP TABLE h7_a.t, h7_x.o ;\n-- wait\n-- at the sink: TRUNCATE h7_b.t;\n"
	if got != want {
		t.Errorf("%q", got)
	}
}

func TestShrink(t *testing.T) {
	numbered := func(n int) (list []Statement) {
		for i := range n {
			list = append(list, Statement{SQL: fmt.Sprint(i)})
		}
		return list
	}
	for _, c := range []struct {
		name  string
		of    int
		needs []string
	}{
		{"one statement", 50, []string{"17"}},
		{"two that are far apart", 50, []string{"3", "44"}},
		{"neighbours", 33, []string{"10", "11", "12"}},
		{"the first and the last", 40, []string{"0", "39"}},
		{"all", 5, []string{"0", "1", "2", "3", "4"}},
		{"a single statement", 1, []string{"0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			got := Shrink(numbered(c.of), func(candidates [][]Statement) []bool {
				var answers []bool
				for _, list := range candidates {
					asked++
					var has []string
					for _, s := range list {
						has = append(has, s.SQL)
					}
					answers = append(answers, !slices.ContainsFunc(c.needs, func(n string) bool { return !slices.Contains(has, n) }))
				}
				return answers
			})
			var left []string
			for _, s := range got {
				left = append(left, s.SQL)
			}
			if !slices.Equal(left, c.needs) {
				t.Errorf("left %v", left)
			}
			if asked > 12*c.of {
				t.Errorf("%d candidates", asked)
			}
		})
	}
}

// If nothing is removable alone, but a failure is not deterministic, the shrinker ends all the same.
func TestShrinkEndsOnAnUnsteadyFailure(t *testing.T) {
	n := 0
	got := Shrink(Whole(3, nil), func(candidates [][]Statement) []bool {
		answers := make([]bool, len(candidates))
		for i := range answers {
			n++
			answers[i] = n%7 == 0
		}
		return answers
	})
	if len(got) == 0 {
		t.Error("nothing is left")
	}
}

func TestStatementsNameOnlySchemasOfTheHistory(t *testing.T) {
	for seed := range uint64(300) {
		for _, s := range Whole(seed, nil) {
			if text := In(s.SQL, "h"); strings.ContainsAny(text, "\x00") || strings.Contains(text, "{a}") {
				t.Fatalf("seed %d: %s", seed, text)
			}
		}
	}
}
