package main

import (
	"fmt"
	"testing"
)

func TestCredentialsThatWorkOnThisMachineOnlySaySo(t *testing.T) {
	const local = "note: the credentials name the API server as %s, which is reached on this machine only; for another machine, start the API server with --listen and --advertise, and run this command again\n"
	const unnamed = "note: without --host the node's certificate is valid for localhost only\n"
	for _, c := range []struct {
		server string
		hosts  []string
		want   string
	}{
		{"https://ebb.example.com:6443", []string{"10.0.0.4"}, ""},
		{"https://10.0.0.1:6443", nil, unnamed},
		{"https://127.0.0.1:6443", []string{"10.0.0.4"}, fmt.Sprintf(local, "https://127.0.0.1:6443")},
		{"https://[::1]:6443", []string{"10.0.0.4"}, fmt.Sprintf(local, "https://[::1]:6443")},
		{"https://localhost:6443", nil, fmt.Sprintf(local, "https://localhost:6443") + unnamed},
	} {
		if got := notes(c.server, c.hosts); got != c.want {
			t.Errorf("%s, %v: %q, want %q", c.server, c.hosts, got, c.want)
		}
	}
}
