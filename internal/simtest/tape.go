package simtest

import (
	"encoding/hex"
	"math/rand/v2"
	"testing"
)

// Tape is what chance decides in a play, drawn beforehand. At its end everything goes the first way.
type Tape struct {
	left []byte
}

// NewTape makes a tape of bytes.
func NewTape(bytes []byte) *Tape { return &Tape{left: bytes} }

// tapeLength is how many bytes the tape of a seed has.
const tapeLength = 2500

// SeededTape returns always the same tape for a seed.
func SeededTape(seed uint64) *Tape {
	r := rand.New(rand.NewPCG(seed, 7))
	t := &Tape{left: make([]byte, tapeLength)}
	for i := range t.left {
		t.left[i] = byte(r.IntN(256))
	}
	return t
}

// Draw returns a number from 0 up to n, without n.
func (t *Tape) Draw(n int) int {
	if len(t.left) == 0 || n < 2 {
		return 0
	}
	b := t.left[0]
	t.left = t.left[1:]
	return int(b) % n
}

// Ended returns whether nothing is left to draw.
func (t *Tape) Ended() bool { return len(t.left) == 0 }

// String is what is left of the tape, as ReplayTape reads it.
func (t *Tape) String() string { return hex.EncodeToString(t.left) }

// ReplayTape plays the tape of the environment, and fails the test with what play returns.
func ReplayTape(t *testing.T, play func(*Tape) (verdict string)) {
	t.Helper()
	Replay(t, func(t *testing.T, plan string) {
		bytes, err := hex.DecodeString(plan)
		if err != nil {
			t.Fatalf("%s is not a tape: %v", plan, err)
		}
		if verdict := play(NewTape(bytes)); verdict != "" {
			t.Error(verdict)
		}
	})
}

// Chance is one of the things that may happen next, and how often it does beside others.
type Chance struct {
	Weight int
	Do     func()
}

// DoOne lets one of the things happen.
func (t *Tape) DoOne(chances ...Chance) {
	total := 0
	for _, c := range chances {
		total += c.Weight
	}
	at := t.Draw(total)
	for _, c := range chances {
		if at < c.Weight {
			c.Do()
			return
		}
		at -= c.Weight
	}
}
