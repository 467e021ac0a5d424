package main

import (
	"testing"

	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/etcdcluster/host"
	"github.com/ebb-dev/ebb/internal/lease"
)

func TestFlagsOfANodeForEtcdClusters(t *testing.T) {
	good := nodeFlags{
		name: "n1", timing: lease.DefaultTiming(), weights: deployment.DefaultWeights(), listen: "127.0.0.1:0", peerListen: "127.0.0.1:0", memory: 1 << 20,
		etcdPorts: host.DefaultPorts,
	}
	for _, c := range []struct {
		change func(*nodeFlags)
		want   string
	}{
		{func(*nodeFlags) {}, ""},
		{func(f *nodeFlags) { f.etcdDir, f.etcdSnapshots = "/data", "/snapshots" }, ""},
		{func(f *nodeFlags) { f.etcdDir = "data" }, `--etcd-dir "data": give an absolute path`},
		{func(f *nodeFlags) { f.etcdSnapshots = "snapshots" }, `--etcd-snapshot-dir "snapshots": give an absolute path`},
		{func(f *nodeFlags) { f.etcdPorts = "1000" }, `--etcd-ports: "1000" is not a range of ports such as 23800-29999`},
		{func(f *nodeFlags) { f.etcdPorts = "1000-1000" }, `--etcd-ports: "1000-1000" has no room for the two ports of a member: give a range within 1-65535`},
	} {
		f := good
		c.change(&f)
		got := ""
		if err := f.validate(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
