package lease_test

import (
	"slices"
	"strconv"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// rule is a property of the whole world.
type rule string

const (
	// oneWorks: never two epochs of one name whose work may run at the same true time, nor one in two places.
	oneWorks rule = "one epoch works"
	// deadFirst: never a mark, or a newer epoch elsewhere, while work of the epoch may run or its process believes that
	// it holds.
	deadFirst rule = "dead before marked"
	// epochsGrow: epochs and marks never decrease, and no epoch is taken twice.
	epochsGrow rule = "epochs grow"
	// noReturn: an epoch that was marked or whose deadline passed is never continued.
	noReturn rule = "no way back"
	// allWell: when all is healthy for long enough, every name is held by exactly one process and its work runs.
	allWell rule = "all is well"
)

// referee sees everything, true time and all clocks included, and writes down the first breach of each rule.
type referee struct {
	*simtest.Referee[rule]
	w        *world
	records  map[string]lease.Record     // newest, by node
	owners   map[string]map[int64]string // by node and epoch
	slots    map[string]*slot            // of each process
	works    []*work                     // that may be running
	marks    []mark
	fails    []failure
	renewals []mark // every renewal and every take that its process knows of
}

// mark of an epoch, or another write that ends or continues one, at a true time.
type mark struct {
	at    time.Duration
	node  string
	epoch int64
}

// failure of a renewal.
type failure struct {
	at   time.Duration
	slot *slot
}

func newReferee(w *world) *referee {
	return &referee{Referee: simtest.NewReferee[rule](func() string { return w.now.String() }), w: w, records: map[string]lease.Record{}, slots: map[string]*slot{}, owners: map[string]map[int64]string{}}
}

func (r *referee) watch(k *work) { r.works = append(r.works, k) }

func (r *referee) failed(p *process) { r.fails = append(r.fails, failure{r.w.now, p.slot}) }

// stored checks one write.
func (r *referee) stored(now lease.Record) {
	old := r.records[now.Node]
	r.records[now.Node] = now
	if now.Epoch < old.Epoch || now.Fenced < old.Fenced {
		r.Breach(epochsGrow, "%+v became %+v", old, now)
	}
	if now.Held() && now.Fenced >= now.Epoch {
		r.Breach(noReturn, "stored %+v", now)
	}
	if now.Held() && now.Epoch == old.Epoch && now.Holder != old.Holder {
		r.Breach(epochsGrow, "%+v became %+v", old, now)
	}
	if now.Fenced > old.Fenced {
		r.Count("marked")
		r.marks = append(r.marks, mark{r.w.now, now.Node, now.Fenced})
	}
	if old.Held() && now.Held() && r.slots[old.Holder] != r.slots[now.Holder] {
		r.Count("taken over")
		r.marks = append(r.marks, mark{r.w.now, now.Node, old.Epoch})
	}
}

// taken checks a take that was stored.
func (r *referee) taken(p *process, epoch int64) {
	r.Count("taken")
	owners := r.owners[p.slot.node]
	if owners == nil {
		owners = map[int64]string{}
		r.owners[p.slot.node] = owners
	}
	if owner := owners[epoch]; owner != "" {
		r.Breach(epochsGrow, "%s took epoch %d of %s, which was %s's", p.id, epoch, p.slot.node, owner)
	}
	owners[epoch] = p.id
}

// counted keeps when the renewal that a process counts on was truly sent.
func (r *referee) counted(p *process, sentAt lease.Instant) {
	p.truly = sentAt
	r.renewals = append(r.renewals, mark{r.w.now, p.slot.node, p.epoch})
}

// goesOn checks a renewal after which a process goes on, by a count of the referee's own.
func (r *referee) goesOn(p *process, sentAt lease.Instant) {
	if age := p.clock().Sub(p.truly); age >= timing.Fence {
		r.Breach(noReturn, "%s goes on in epoch %d, %s after its last renewal was sent", p.id, p.epoch, age)
	}
	if fenced := r.records[p.slot.node].Fenced; fenced >= p.epoch {
		r.Breach(noReturn, "%s goes on in epoch %d, though %d is marked", p.id, p.epoch, fenced)
	}
	r.counted(p, max(p.truly, sentAt))
}

// look checks the world as it is now.
func (r *referee) look() {
	r.works = slices.DeleteFunc(r.works, func(k *work) bool { return !k.mayRun() })
	for i, k := range r.works {
		record := r.records[k.slot.node]
		elsewhere := record.Held() && r.slots[record.Holder] != k.slot
		if record.Fenced >= k.epoch || record.Epoch > k.epoch && elsewhere {
			r.Breach(deadFirst, "work of epoch %d in slot %d may run, though the Lease says %+v", k.epoch, k.slot.index(), record)
		}
		for _, other := range r.works[:i] {
			if other.slot.node == k.slot.node {
				r.Breach(oneWorks, "work of epochs %d and %d of %s may run", other.epoch, k.epoch, k.slot.node)
			}
		}
	}
	for _, s := range r.w.slots {
		p, record := s.process, r.records[s.node]
		if p == nil || !p.alive || p.held == nil {
			continue
		}
		if max(record.Fenced, record.Epoch-1) >= p.held.Number() && p.holding() {
			r.Breach(deadFirst, "%s holds epoch %d, though the Lease says %+v", p.id, p.held.Number(), record)
		}
	}
}

// well checks the end of a run.
func (r *referee) well() {
	for node := range nodes() {
		record, holders := r.records[node], 0
		for _, s := range r.w.slots {
			if s.node != node || !s.process.holding() {
				continue
			}
			holders++
			if record.Holder != s.process.id || record.Epoch != s.process.held.Number() || !s.shim.mayRun() {
				r.Breach(allWell, "%s holds epoch %d, but the Lease says %+v", s.process.id, s.process.held.Number(), record)
			}
		}
		if holders != 1 {
			r.Breach(allWell, "%d processes hold %s: %+v", holders, node, record)
		}
	}
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }
