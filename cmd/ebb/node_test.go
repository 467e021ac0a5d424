package main

import (
	"io"
	"testing"
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
