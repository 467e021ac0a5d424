package access_test

import (
	"context"
	"testing"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/access/policytest"
)

// The rules are what Kubernetes refuses by; they cannot see leases.
func TestARuleWithoutAPolicyNeverHolds(t *testing.T) {
	writes := &access.NodeWrites{Check: func(context.Context, access.Write) error { return nil }}
	if policytest.Holds(t, writes.Rules(), "n1", object(nil).Object, object(nil).Object, true) {
		t.Error("a check in code without a policy lets nodes write everything on Kubernetes")
	}
}
