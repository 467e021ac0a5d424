package nbd

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

// Client is a program that is connected.
type Client struct {
	// PID of the process that connected, 0 if that is not known.
	PID int
	// Command is the name of that process, as it was when it connected.
	Command string
	// Address of a client that did not come over a Unix socket.
	Address string
	// Since is when it connected.
	Since time.Time
}

// String names the client for people, for instance "qemu-img (pid 4711)".
func (c Client) String() string {
	switch {
	case c.Address != "":
		return c.Address
	case c.PID == 0:
		return "an unknown process"
	case c.Command == "":
		return fmt.Sprintf("pid %d", c.PID)
	}
	return fmt.Sprintf("%s (pid %d)", c.Command, c.PID)
}

func compareClients(a, b Client) int {
	return cmp.Or(cmp.Compare(a.Command, b.Command), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Address, b.Address), a.Since.Compare(b.Since))
}

// ClientNames names the programs among clients, each once, sorted. A program often has several connections.
func ClientNames(clients []Client) []string {
	sorted := slices.SortedFunc(slices.Values(clients), compareClients)
	var names []string
	for _, c := range sorted {
		if name := c.String(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// peerOf finds out who is at the other end of a connection.
func peerOf(conn net.Conn) Client {
	client := Client{Since: time.Now()}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		client.Address = conn.RemoteAddr().String()
		return client
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return client
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			client.PID = int(cred.Pid)
		}
	})
	if client.PID != 0 {
		comm, _ := os.ReadFile("/proc/" + strconv.Itoa(client.PID) + "/comm")
		client.Command = printable(strings.TrimSpace(string(comm)))
	}
	return client
}

// printable replaces what a process may have in its name to confuse those who read it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
