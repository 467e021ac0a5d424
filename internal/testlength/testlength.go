// Package testlength says how much of what is long by nature the tests do: a short form whenever they run, the long one when it is
// asked for.
package testlength

import (
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
)

const (
	longEnv = "EBB_LONG"
	seedEnv = "EBB_SEED"
)

// Long says whether the long form was asked for, as `make test-long` does.
func Long() bool { return os.Getenv(longEnv) == "1" }

// Pick is the first in the short form, and the second in the long one.
func Pick[T any](short, long T) T {
	if Long() {
		return long
	}
	return short
}

// Seeds are the seeds that a simulation plays: from 0 on, the same every time, so that a change is judged by what it changes. The long form
// ends with a random one. A failure names its seed, and with EBB_SEED set to it that seed alone is played again.
func Seeds(short, long uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		if only, err := strconv.ParseUint(os.Getenv(seedEnv), 10, 64); err == nil {
			yield(only)
			return
		}
		for seed := range Pick(short, long) {
			if !yield(seed) {
				return
			}
		}
		if Long() {
			yield(1<<32 + rand.Uint64N(1<<32))
		}
	}
}
