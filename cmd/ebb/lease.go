package main

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/ebb-dev/ebb/internal/lease"
)

// leaseFlag is the flag of one duration of the lease timing.
type leaseFlag struct {
	name, usage string
	value       func(*lease.Timing) *time.Duration
}

// leaseFlags are the same for a node and for a cluster of them.
var leaseFlags = []leaseFlag{
	{"lease-renew", "time between renewals of the lease", func(t *lease.Timing) *time.Duration { return &t.Renew }},
	{"lease-renew-timeout", "timeout of one renewal", func(t *lease.Timing) *time.Duration { return &t.Timeout }},
	{"lease-fence", "time after the last renewal when the node starts to stop its work", func(t *lease.Timing) *time.Duration { return &t.Fence }},
	{"lease-dead", "time after the last renewal when all work of the node has stopped or is killed", func(t *lease.Timing) *time.Duration { return &t.Dead }},
	{"lease-duration", "time after the last renewal when other nodes may fence the node and take over its work, in whole seconds", func(t *lease.Timing) *time.Duration { return &t.Lost }},
}

// addLeaseTiming adds the flags that set a timing. What it holds is their defaults.
func addLeaseTiming(fs *pflag.FlagSet, t *lease.Timing) {
	for _, f := range leaseFlags {
		v := f.value(t)
		fs.DurationVar(v, f.name, *v, f.usage)
	}
}

// leaseArgs returns the arguments that set a node's timing, without defaults.
func leaseArgs(t lease.Timing) []string {
	var args []string
	defaults := lease.DefaultTiming()
	for _, f := range leaseFlags {
		if v := *f.value(&t); v != *f.value(&defaults) {
			args = append(args, fmt.Sprintf("--%s=%s", f.name, v))
		}
	}
	return args
}
