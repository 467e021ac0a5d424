package snapshot

import "io"

// Step is what is being done to take a snapshot.
type Step string

// The steps, in their order. The first is for the data of a stopped member only.
const (
	// Copying: the data of a stopped member is copied, so that the original stays as it is.
	Copying Step = "Copying"
	// Writing: the member sends its database.
	Writing Step = "Writing"
	// Hashing: the file is read, and its checksum and the hash of its keys are computed.
	Hashing Step = "Hashing"
	// Comparing: the member computes the hash of its keys. It does not say how far it is.
	Comparing Step = "Comparing"
)

// Progress is told, often, how far a step is: how many bytes of a total are done. The total of a step may change while it goes on.
type Progress func(step Step, done, total int64)

// Meter counts the bytes of one step. It implements io.Writer.
type Meter struct {
	tell        Progress
	step        Step
	done, total int64
}

// NewMeter begins a step. A nil Progress is told nothing.
func NewMeter(tell Progress, step Step, total int64) *Meter {
	m := &Meter{tell: tell, step: step, total: total}
	m.add(0)
	return m
}

var _ io.Writer = (*Meter)(nil)

// Write implements io.Writer. It counts what passes.
func (m *Meter) Write(p []byte) (int, error) {
	m.add(int64(len(p)))
	return len(p), nil
}

func (m *Meter) add(n int64) {
	m.done += n
	if m.tell != nil {
		m.tell(m.step, min(m.done, m.total), m.total)
	}
}

// finish ends one of several passes over the file. What was counted in it is what was looked at, which is less than the file.
func (m *Meter) finish(done int64) {
	m.add(done - m.done)
}
