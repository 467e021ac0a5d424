package lease_test

import (
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/internal/lease"
)

// timing of every test: fence at 6 s, dead at 8 s, lost at 10 s.
var timing = lease.DefaultTiming()

// wall is some time of day. Nothing may depend on it.
var wall = time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)

func at(seconds float64) lease.Instant { return lease.Instant(seconds * float64(time.Second)) }

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// object builds a node's Lease.
type object struct{ *coordinationv1.Lease }

func leaseOf(node string) object {
	return object{&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: lease.Namespace, Name: lease.NameOf(node), ResourceVersion: "41", Annotations: map[string]string{},
	}}}
}

func (o object) held(holder string, epoch int64) object {
	o.Spec.HolderIdentity = &holder
	return o.duration(10).annotate(lease.EpochAnnotation, strconv.FormatInt(epoch, 10))
}

// released is a Lease whose epoch ended in order.
func (o object) released(epoch int64) object {
	return o.duration(10).annotate(lease.EpochAnnotation, strconv.FormatInt(epoch, 10))
}

func (o object) fenced(epoch int64) object {
	return o.annotate(lease.FencedAnnotation, strconv.FormatInt(epoch, 10))
}

func (o object) duration(seconds int32) object {
	o.Spec.LeaseDurationSeconds = &seconds
	return o
}

func (o object) annotate(key, value string) object {
	o.Annotations[key] = value
	return o
}

func (o object) renewedAt(t time.Time) object {
	micro := metav1.NewMicroTime(t)
	o.Spec.RenewTime, o.Spec.AcquireTime = &micro, &micro
	return o
}

// seen is a record of a held lease of 10 s.
func seen(node, version string) lease.Record {
	return lease.Record{Node: node, Version: version, Holder: "p-" + node, Epoch: 1, Duration: 10 * time.Second}
}
