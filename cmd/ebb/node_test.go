package main

import (
	"io"
	"net"
	"net/url"
	"slices"
	"testing"

	"github.com/ebb-dev/ebb/internal/lease"
)

// The flags of every kind of work are refused before a node does anything.
func TestFlagsOfANode(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--etcd-dir", "data"}, `--etcd-dir "data": give an absolute path`},
		{[]string{"--etcd-snapshot-dir", "snapshots"}, `--etcd-snapshot-dir "snapshots": give an absolute path`},
		{[]string{"--etcd-ports", "1000"}, `--etcd-ports: "1000" is not a range of ports such as 23800-29999`},
		{[]string{"--etcd-ports", "1000-1000"}, `--etcd-ports: "1000-1000" has no room for the two ports of a member: give a range within 1-65535`},
		{[]string{"--file-sink-dir", "files"}, `--file-sink-dir "files": give an absolute path`},
		{[]string{"--changefeed-memory", "1000"}, `--changefeed-memory 1000: give at least 1048576 bytes`},
		{[]string{"--etcd-dir", "/data", "--etcd-snapshot-dir", "/snapshots", "--listen", "nowhere"}, `--listen "nowhere" is not host:port: address nowhere: missing port in address`},
	} {
		cmd := newNode()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		cmd.SetArgs(append([]string{"--name", "n1", "--data-dir", t.TempDir()}, c.args...))
		if err := cmd.Execute(); err == nil || err.Error() != c.want {
			t.Errorf("%v: %v, want %q", c.args, err, c.want)
		}
	}
}

// The manifests put the address of a pod in brackets, whichever family it is of.
func TestAnAddressInBracketsIsServed(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		listen := "[" + host + "]:0"
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Fatalf("listen on %s: %v", listen, err)
		}
		f := nodeFlags{name: "n1", timing: lease.DefaultTiming(), listen: listen, peerListen: listen}
		if err := f.validate(); err != nil {
			t.Error(err)
		}
		if got := f.hosts(); !slices.Equal(got, []string{"localhost", "127.0.0.1", "::1"}) {
			t.Errorf("hosts of %s: %q", listen, got)
		}
		if u, err := url.Parse(f.url(l)); err != nil || u.Hostname() != host {
			t.Errorf("URL of %s: %v, %v", listen, u, err)
		}
		_ = l.Close()
	}
	if got := (nodeFlags{listen: "[fd00::7]:1", peerListen: "[10.0.0.7]:2"}).hosts(); !slices.Equal(got[3:], []string{"fd00::7", "10.0.0.7"}) {
		t.Errorf("hosts: %q", got)
	}
}
