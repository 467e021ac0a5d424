package deployment_test

import (
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
)

// deaf is a program that does not hear that it should end.
const deaf = named + `
mark() { read -r up rest </proc/uptime; echo "$1 $run $EBB_NODE $EBB_DEPLOYMENT $up" >>"$file"; }
file=$0
trap '' TERM
mark start
while :; do mark beat; sleep 0.1; done
`

// The lease's own deadline and the program's grace are minutes away: what ends the program is that its node knows.
func TestAProgramEndsAtOnceWhenItsNodeLearnsThatItWasCalledLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.host("a", func(m *host) {
		m.opts.Timing = lease.Timing{Renew: time.Second, Timeout: time.Second, Fence: 5 * time.Minute, Dead: 9 * time.Minute, Lost: 10 * time.Minute}
	})
	w := s.deploy("w", runs(deaf, s.file("w")), grace(10*time.Minute))
	stopping := s.deploy("stopping", runs(deaf, s.file("stopping")), grace(10*time.Minute))
	pid, other := w.runsOn(a.name), stopping.runsOn(a.name)
	stopping.update(disabled) // it has been asked to end already, and has ten minutes
	stopping.instance(a.name, "stopping", func(i *v1alpha1.DeploymentInstance) bool { return i.State == v1alpha1.InstanceStopping })
	s.mark(a.name)
	until(t, "both to be dead", func() bool { return !lives(pid) && !lives(other) })
	a.awaitReady()
	oneAtATime(t, w.marks())
	// The next epoch starts it again, and its node would wait ten minutes for it when the test ends.
	w.update(func(d *v1alpha1.Deployment) {
		disabled(d)
		grace(time.Second)(d)
	})
	until(t, "it to have ended again", func() bool { return w.get().Instance(a.name) == nil })
}
