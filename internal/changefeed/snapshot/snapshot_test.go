package snapshot_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// world is a source with a history, and a sink to which a table is copied while it changes.
type world struct {
	history []map[int]int // the rows at each position
	keyed   []bool        // whether the table had a key at each position
	altered map[int]bool  // positions of ALTER

	rows     map[int]int // at the sink
	position int
	state    snapshot.State
	done     bool
}

// layout is that of the table at a position; the key of another definition has another type.
func (w *world) layout(at int) *snapshot.Layout {
	version := 0
	for p := range w.altered {
		if p <= at {
			version++
		}
	}
	l := &snapshot.Layout{Table: stream.Table{Schema: "d", Name: "t"}, Columns: []snapshot.Column{{Name: "id", Type: "int", FullType: fmt.Sprintf("int(%d)", version)}, {Name: "v", Type: "int"}}}
	if w.keyed[at] {
		l.Key, l.KeyName = []int{0}, "PRIMARY"
	}
	return l
}

func (w *world) head() int { return len(w.history) - 1 }

// change adds a position to the history.
func (w *world) change(do func(rows map[int]int)) {
	rows := maps.Clone(w.history[w.head()])
	do(rows)
	w.history, w.keyed = append(w.history, rows), append(w.keyed, w.keyed[w.head()])
}

// replicate applies changes up to a position as a sink does: deletes tolerate missing rows, inserts and updates write the row.
func (w *world) replicate(to int) {
	for w.position < to {
		before, after := w.history[w.position], w.history[w.position+1]
		w.position++
		if w.altered[w.position] && !w.done {
			w.state = snapshot.State{}
		}
		if !w.done && !w.state.Begun {
			continue
		}
		for k, v := range before {
			if now, ok := after[k]; !ok || now != v {
				delete(w.rows, k)
			}
		}
		for k, v := range after {
			if was, ok := before[k]; !ok || was != v {
				w.rows[k] = v
			}
		}
	}
}

// read is a chunk of a snapshot at a position, as the server reads it.
func (w *world) read(t *rapid.T, at int, limit int) *snapshot.Chunk {
	l := w.layout(at)
	after, first := w.state.Next(l)
	b := snapshot.NewBuilder(l)
	from := -1 << 30
	if after != nil {
		from = number(t, string(after.Values[0]))
	}
	keys := slices.Sorted(maps.Keys(w.history[at]))
	keys = slices.DeleteFunc(keys, func(k int) bool { return k <= from })
	last := true
	if len(l.Key) > 0 && len(keys) >= limit {
		keys, last = keys[:limit], false
	}
	for _, k := range keys {
		if err := b.Add([][]byte{[]byte(strconv.Itoa(k)), []byte(strconv.Itoa(w.history[at][k]))}); err != nil {
			t.Fatal(err)
		}
	}
	c := b.Done(after)
	c.First, c.Last = first, last
	return c
}

func number(t *rapid.T, text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// write writes a chunk at the position of its snapshot.
func (w *world) write(t *rapid.T, c *snapshot.Chunk) {
	if !w.state.Follows(c) {
		return // it was altered since the chunk was read
	}
	if c.First {
		clear(w.rows)
	}
	for _, b := range c.Blocks {
		for row := range strings.SplitSeq(strings.Trim(string(b.Values), "()"), "),(") {
			k, v, _ := strings.Cut(row, ",")
			key := number(t, k)
			if was, ok := w.rows[key]; ok && was != number(t, v) {
				t.Fatalf("row %d is %d at the sink and %s in the chunk of the same position", key, was, v)
			}
			w.rows[key] = number(t, v)
		}
	}
	// As it is stored.
	text, err := c.Cursor.Encode()
	if err != nil {
		t.Fatal(err)
	}
	cursor, err := snapshot.DecodeCursor(text)
	if err != nil {
		t.Fatal(err)
	}
	w.state, w.done = snapshot.State{Begun: true, Cursor: cursor}, c.Last
}

// check: the sink has only rows that the source had at the same position, all of them up to the cursor, and all once it is done.
func (w *world) check(t *rapid.T) {
	now := w.history[w.position]
	if !w.done && !w.state.Begun {
		return
	}
	for k, v := range w.rows {
		if was, ok := now[k]; !ok || was != v {
			t.Fatalf("at position %d the sink has row %d = %d, the source %v", w.position, k, v, now)
		}
	}
	to := 1 << 30
	if !w.done {
		if w.state.Cursor == nil || w.state.Cursor.Key != w.layout(w.position).Fingerprint() {
			return
		}
		to = number(t, string(w.state.Cursor.Values[0]))
	}
	for k := range now {
		if _, ok := w.rows[k]; k <= to && !ok {
			t.Fatalf("at position %d the sink lacks row %d, and everything up to %d is copied", w.position, k, to)
		}
	}
}

func TestChunksCoverEveryKeyOnceWhileRowsChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{history: []map[int]int{{}}, keyed: []bool{rapid.IntRange(0, 4).Draw(t, "keyed") > 0}, altered: map[int]bool{}, rows: map[int]int{}}
		w.change(func(rows map[int]int) {
			for _, k := range rapid.SliceOfN(rapid.IntRange(-20, 20), 0, 30).Draw(t, "rows") {
				rows[k] = 0
			}
		})
		key := rapid.IntRange(-25, 25)
		limit := rapid.IntRange(1, 7)
		t.Repeat(map[string]func(*rapid.T){
			"insert or update": func(t *rapid.T) {
				k := key.Draw(t, "key")
				w.change(func(rows map[int]int) { rows[k]++ })
			},
			"delete": func(t *rapid.T) { k := key.Draw(t, "key"); w.change(func(rows map[int]int) { delete(rows, k) }) },
			"move": func(t *rapid.T) {
				from, to := key.Draw(t, "from"), key.Draw(t, "to")
				w.change(func(rows map[int]int) {
					if v, ok := rows[from]; ok {
						delete(rows, from)
						rows[to] = v + 100
					}
				})
			},
			"truncate": func(*rapid.T) { w.change(func(rows map[int]int) { clear(rows) }) },
			"alter": func(t *rapid.T) {
				w.change(func(rows map[int]int) {
					for k := range rows {
						rows[k] += 1000
					}
				})
				w.altered[w.head()] = true
				w.keyed[w.head()] = rapid.IntRange(0, 4).Draw(t, "keyed") > 0
				if w.done { // the sink executes it
					w.replicate(w.head())
				}
			},
			"replicate": func(t *rapid.T) { w.replicate(rapid.IntRange(w.position, w.head()).Draw(t, "to")) },
			"chunk": func(t *rapid.T) {
				if w.done {
					return
				}
				at := rapid.IntRange(w.position, w.head()).Draw(t, "snapshot")
				c := w.read(t, at, limit.Draw(t, "limit"))
				w.replicate(at)
				w.write(t, c)
			},
			"": w.check,
		})
		for n := 0; !w.done; n++ {
			if n > 1000 {
				t.Fatal("the copy does not end")
			}
			w.replicate(w.head())
			w.write(t, w.read(t, w.head(), 3))
		}
		w.replicate(w.head())
		if !maps.Equal(w.rows, w.history[w.head()]) {
			t.Fatalf("the sink has %v, the source %v", w.rows, w.history[w.head()])
		}
	})
}

func TestSelectReadsAfterACursor(t *testing.T) {
	l := &snapshot.Layout{Table: stream.Table{Schema: "d", Name: "t`x"}, KeyName: "PRIMARY", Key: []int{2, 0}, Columns: []snapshot.Column{
		{Name: "id", Type: "bigint", FullType: "bigint(20) unsigned"}, {Name: "g", Type: "int", Generated: true}, {Name: "name", Type: "varchar", Charset: "latin1", Collation: "latin1_bin"}, {Name: "f", Type: "float"}, {Name: "e", Type: "enum"},
	}}
	got, err := l.Select(&snapshot.Cursor{Values: [][]byte{[]byte("a'"), []byte("18446744073709551615")}}, 10)
	if err != nil {
		t.Fatal(err)
	}
	want := "SELECT `id`,`name`,CAST(`f` AS DOUBLE),CAST(`e` AS UNSIGNED) FROM `d`.`t``x` FORCE INDEX (`PRIMARY`) WHERE `name` > _latin1 X'6127' COLLATE latin1_bin OR (`name` = _latin1 X'6127' COLLATE latin1_bin AND (`id` > 18446744073709551615)) ORDER BY `name`,`id` LIMIT 10"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, err := l.Select(&snapshot.Cursor{Values: [][]byte{[]byte("a"), []byte("1 OR 1")}}, 10); err == nil {
		t.Error("a cursor that is not a number was accepted")
	}
}
