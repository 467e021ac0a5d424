package host

import (
	"fmt"
	"net"
	"testing"
)

func TestRangesOfPorts(t *testing.T) {
	for text, good := range map[string]bool{
		DefaultPorts: true, "1000-1001": true, "1000-1000": false, "1001-1000": false, "0-10": false, "65534-65536": false, "1000": false, "a-b": false, "": false, "10-": false,
	} {
		if _, err := ParsePorts(text); (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// freeRange finds a few ports that nobody has.
func freeRange(t *testing.T) PortRange {
	t.Helper()
	for first := 20000; first < 23000; first += 6 {
		ports := []int{first, first + 1, first + 2, first + 3}
		if h, err := holdPorts("127.0.0.1", ports...); err == nil {
			h.release()
			return PortRange{First: first, Last: first + 3}
		}
	}
	t.Fatal("no ports are free")
	return PortRange{}
}

func TestPortsArePickedOnceAndHeld(t *testing.T) {
	r := freeRange(t)
	p1, c1, h1, err := r.pick("127.0.0.1", "uid-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer h1.release()
	if c1 != p1+1 || p1 < r.First || c1 > r.Last {
		t.Errorf("picked %d and %d of %v", p1, c1, r)
	}
	for _, port := range []int{p1, c1} {
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			t.Errorf("port %d is held, and somebody listens on it", port)
		}
		if conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			conn.Close()
			t.Errorf("port %d is only held, and somebody is connected to it", port)
		}
	}
	p2, _, h2, err := r.pick("127.0.0.1", "uid-1", nil)
	if err != nil || p2 == p1 {
		t.Fatalf("the second pick is %d after %d: %v", p2, p1, err)
	}
	defer h2.release()
	if _, _, h, err := r.pick("127.0.0.1", "uid-2", nil); err == nil {
		h.release()
		t.Error("a third pair in a range of two")
	}
	h1.release()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p1))
	if err != nil {
		t.Fatalf("a port that was given back: %v", err)
	}
	l.Close()
	if _, _, h, err := r.pick("127.0.0.1", "uid-1", map[int]bool{p1: true}); err == nil {
		h.release()
		t.Error("a port of another member was picked")
	}
}
