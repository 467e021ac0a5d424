package dispatch

import (
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// A write costs a sink about the same, however many changes it has. So a worker adds the changes of other tables in line, up to one batch, if the
// sink can write several tables in one transaction. While some writes are under way and less than a batch is in line, no other write begins: later
// changes share the next one. While the sink has time left no table waits longer.

const (
	// enoughWrites is how many writes keep a sink busy while batches are built and answers travel.
	enoughWrites = 2
	// holdMost bounds how long a table waits for others: the writes under way may hang.
	holdMost = 20 * time.Millisecond
	// holdSlice is how long a worker sleeps before it checks again.
	holdSlice = 5 * time.Millisecond
	// sharedTables and sharedBytes bound a write of several tables.
	sharedTables = 500
	sharedBytes  = 4 << 20
)

// run is one worker.
func (f *Feed) run() {
	for {
		select {
		case <-f.ctx.Done():
			return
		case <-f.work:
		}
		for {
			list, wait := f.next()
			if wait > 0 {
				select {
				case <-f.ctx.Done():
					return
				case <-time.After(wait):
				}
				f.release()
				continue
			}
			if list == nil {
				break
			}
			f.write(list)
		}
	}
}

// next takes what to write next out of the line, or returns how long to wait for more; neither if there is nothing to do, or if another
// worker waits already.
func (f *Feed) next() ([]*flush, time.Duration) {
	now := time.Now()
	pause := f.linger.now(now)
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.line) > 0 {
		first := f.line[0]
		if wait := pause - now.Sub(first.since); wait > 0 && !f.engine.budget.scarce() && !first.pressing() {
			return nil, min(wait, lingerSlice)
		}
		if f.holds(now) {
			if f.holding {
				return nil, 0
			}
			f.holding = true
			return nil, holdSlice
		}
		f.line = f.line[1:]
		_, shares := first.shareable()
		b := first.begin(f.batch)
		if b == nil {
			continue
		}
		list := []*flush{b}
		if f.together != nil && shares {
			list = f.gather(list)
		}
		f.writing++
		if len(f.line) > 0 {
			f.ring() // there is work for another worker
		}
		return list, 0
	}
	return nil, 0
}

// release ends a wait for more.
func (f *Feed) release() {
	f.mu.Lock()
	f.holding = false
	f.mu.Unlock()
}

// holds reports whether the line should grow before another write is begun. The caller holds the lock.
func (f *Feed) holds(now time.Time) bool {
	if f.together == nil || f.writing < enoughWrites || now.Sub(f.line[0].since) >= holdMost || f.engine.budget.scarce() {
		return false
	}
	total := 0
	for _, d := range f.line {
		changes, ok := d.shareable()
		if total += changes; !ok || total >= f.batch {
			return false
		}
	}
	return true
}

// gather adds to a batch what the next dispatchers in line have, until it is a whole one. The caller holds the lock.
func (f *Feed) gather(list []*flush) []*flush {
	changes, bytes := list[0].changes, list[0].bytes
	for len(f.line) > 0 && changes < f.batch && bytes < sharedBytes && len(list) < sharedTables {
		if _, ok := f.line[0].shareable(); !ok {
			break
		}
		d := f.line[0].dispatcher
		f.line = f.line[1:]
		if b := d.begin(f.batch - changes); b != nil {
			list, changes, bytes = append(list, b), changes+b.changes, bytes+b.bytes
		}
	}
	return list
}

// write writes batches: one, or several together.
func (f *Feed) write(list []*flush) {
	began := time.Now()
	f.begins(began)
	var mu sync.Mutex
	wrote, changes := false, 0
	ended := func(b *flush, err error) {
		if err == nil {
			f.rows.Add(int64(b.changes))
			f.bytes.Add(int64(b.bytes))
			mu.Lock()
			wrote, changes = true, changes+b.changes
			mu.Unlock()
		}
		if b.done(f.ctx, err) {
			f.enqueue(b.dispatcher)
		}
	}
	var parts []stream.Part
	for _, b := range list {
		if len(list) == 1 || b.last.DDL != nil { // DDL may have come since the line was looked at
			prepared := f.prepareNext(b)
			err := b.write(f.ctx)
			prepared()
			ended(b, err)
			continue
		}
		parts = append(parts, stream.Part{Writer: b.writer, Rows: b.batch, To: b.last.To(), Done: func(err error) { ended(b, err) }})
	}
	if len(parts) > 0 {
		f.together.WriteTogether(f.ctx, parts)
	}
	took := time.Since(began)
	f.mu.Lock()
	f.writing--
	f.mu.Unlock()
	f.ends(wrote)
	if !wrote {
		return
	}
	f.linger.wrote(len(list), changes, took, time.Now())
	if flushed := f.engine.opts.Flushed; flushed != nil {
		flushed(took)
	}
}

// prepareNext lets the writer of a batch that is about to be written prepare the next one meanwhile, unless other tables wait for the
// processors. The function that it returns waits for that.
func (f *Feed) prepareNext(b *flush) (wait func()) {
	var wg sync.WaitGroup
	if ahead, ok := b.writer.(stream.AheadWriter); ok && b.last.DDL == nil && !f.waits() {
		if next := b.upcoming(f.batch); next != nil {
			wg.Go(func() {
				ahead.Prepare(next)
				if b.isParked() { // its changes were dropped meanwhile
					ahead.Forget()
				}
			})
		}
	}
	return wg.Wait
}

// waits reports whether tables are in line.
func (f *Feed) waits() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.line) > 0
}
