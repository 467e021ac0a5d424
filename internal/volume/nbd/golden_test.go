package nbd

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// unhex reads bytes written in hexadecimal digits, with blanks between them and "text" in quotes.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var b []byte
	for i, part := range strings.Split(s, `"`) {
		if i%2 == 1 {
			b = append(b, part...)
			continue
		}
		piece, err := hex.DecodeString(strings.Join(strings.Fields(part), ""))
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, piece...)
	}
	return b
}

// exchange is bytes that the client sends, and what it must get.
type exchange struct{ send, want string }

const (
	sayOption = `"IHAVEOPT" `
	getOption = `0003e889045565a9 `
	hello     = `"NBDMAGICIHAVEOPT" 0003`
	goPlain   = sayOption + `00000007 00000009 00000003"vol"0000`
	// A size of 256 KiB; flags with and without DF.
	wentPlain      = getOption + `00000007 00000003 0000000c 0000 0000000000040000 016d` + getOption + `00000007 00000001 00000000`
	wentStructured = getOption + `00000007 00000003 0000000c 0000 0000000000040000 01ed` + getOption + `00000007 00000001 00000000`
	structured     = sayOption + `00000008 00000000`
	structuredAck  = getOption + `00000008 00000001 00000000`
	setContext     = sayOption + `0000000a 0000001e 00000003"vol" 00000001 0000000f"base:allocation"`
	setContextAck  = getOption + `0000000a 00000004 00000013 00000001"base:allocation"` + getOption + `0000000a 00000001 00000000`
)

func TestExchangesAreAsTheProtocolSays(t *testing.T) {
	for _, test := range []struct {
		name      string
		exchanges []exchange
		closed    bool // the server closes the connection at the end
	}{
		{name: "an old client chooses the export by its name", exchanges: []exchange{
			{``, hello}, {`00000001`, ``},
			{sayOption + `00000001 00000003"vol"`, `0000000000040000 016d` + strings.Repeat("00", 124)},
			{`25609513 0000 0000 0000000000000001 0000000000000000 00000004`, `67446698 00000000 0000000000000001"abcd"`},
		}},
		{name: "no zeroes follow if the client does not want them", exchanges: []exchange{
			{``, hello}, {`00000003`, ``}, {sayOption + `00000001 00000000`, `0000000000040000 016d`},
			{`25609513 0000 0003 0000000000000002 0000000000000000 00000000`, `67446698 00000000 0000000000000002`},
		}},
		{name: "an unknown name ends the connection of an old client", closed: true, exchanges: []exchange{
			{``, hello}, {`00000003`, ``}, {sayOption + `00000001 00000003"lov"`, ``},
		}},
		{name: "unknown handshake flags end the connection", closed: true, exchanges: []exchange{{``, hello}, {`00000007`, ``}}},
		{name: "abort is acknowledged", closed: true, exchanges: []exchange{
			{``, hello}, {`00000003`, ``}, {sayOption + `00000002 00000003"bye"`, getOption + `00000002 00000001 00000000`},
		}},
		{name: "list names the export", exchanges: []exchange{
			{``, hello}, {`00000003`, ``},
			{sayOption + `00000003 00000000`, getOption + `00000003 00000002 00000007 00000003"vol"` + getOption + `00000003 00000001 00000000`},
			{sayOption + `00000003 00000001 00`, getOption + `00000003 80000003 00000018"the option takes no data"`},
		}},
		{name: "unknown options are refused and the handshake goes on", exchanges: []exchange{
			{``, hello}, {`00000003`, ``},
			{sayOption + `00000005 00000000`, getOption + `00000005 80000001 0000001b"the option is not supported"`},
			{sayOption + `0000000b 00000000`, getOption + `0000000b 80000001 0000001b"the option is not supported"`},
			{sayOption + `deadbeef 00000004 00000000`, getOption + `deadbeef 80000001 0000001b"the option is not supported"`},
			{goPlain, wentPlain},
		}},
		{name: "info says what was asked for", exchanges: []exchange{
			{``, hello}, {`00000003`, ``},
			{sayOption + `00000006 0000000f 00000003"vol" 0003 0001 0003 4242`,
				getOption + `00000006 00000003 0000000c 0000 0000000000040000 016d` +
					getOption + `00000006 00000003 00000005 0001"vol"` +
					getOption + `00000006 00000003 0000000e 0003 00000001 00001000 02000000` +
					getOption + `00000006 00000001 00000000`},
			{sayOption + `00000006 00000009 00000003"lov"0000`, getOption + `00000006 80000006 0000000e"no such export"`},
			{sayOption + `00000006 00000009 000000ff"vol"0000`, getOption + `00000006 80000003 00000023"the data of the option is malformed"`},
			{sayOption + `00000006 00000009 00000003"vol"0001`, getOption + `00000006 80000003 00000023"the data of the option is malformed"`},
			{goPlain, wentPlain},
		}},
		{name: "metadata contexts need structured replies", exchanges: []exchange{
			{``, hello}, {`00000003`, ``},
			{setContext, getOption + `0000000a 80000003 0000002b"structured replies must be negotiated first"`},
			{structured, structuredAck}, {setContext, setContextAck},
		}},
		{name: "contexts are listed, selected and dropped", exchanges: []exchange{
			{``, hello}, {`00000003`, ``}, {structured, structuredAck},
			{sayOption + `00000009 0000000b 00000003"vol" 00000000`,
				getOption + `00000009 00000004 00000013 00000001"base:allocation"` + getOption + `00000009 00000001 00000000`},
			{sayOption + `00000009 00000014 00000003"vol" 00000001 00000005"base:"`,
				getOption + `00000009 00000004 00000013 00000001"base:allocation"` + getOption + `00000009 00000001 00000000`},
			{sayOption + `0000000a 00000014 00000003"vol" 00000001 00000005"base:"`, getOption + `0000000a 00000001 00000000`},
			{setContext, setContextAck},
			{sayOption + `0000000a 00000014 00000003"vol" 00000001 00000005"qemu:"`, getOption + `0000000a 00000001 00000000`},
			{goPlain, wentStructured},
			// A status without a context: invalid.
			{`25609513 0000 0007 0000000000000009 0000000000000000 00001000`,
				`668e33ef 0001 8001 0000000000000009 00000028 00000016 0022"no metadata context was negotiated"`},
		}},
		{name: "structured reads have data and holes", exchanges: []exchange{
			{``, hello}, {`00000003`, ``}, {structured, structuredAck}, {setContext, setContextAck}, {goPlain, wentStructured},
			{`25609513 0000 0000 0000000000000001 0000000000000001 00000002`, `668e33ef 0001 0001 0000000000000001 0000000a 0000000000000001"bc"`},
			// The last 4 bytes of data and the 64 KiB of the hole after them.
			{`25609513 0000 0000 0000000000000002 000000000000fffc 00010004`,
				`668e33ef 0000 0001 0000000000000002 0000000c 000000000000fffc"wxyz"` +
					`668e33ef 0001 0002 0000000000000002 0000000c 0000000000010000 00010000`},
			{`25609513 0000 0007 0000000000000003 0000000000000000 00030000`,
				`668e33ef 0001 0005 0000000000000003 0000001c 00000001 00010000 00000000 00010000 00000003 00010000 00000000`},
			{`25609513 0008 0007 0000000000000004 0000000000018000 00020000`,
				`668e33ef 0001 0005 0000000000000004 0000000c 00000001 00008000 00000003`},
			{`25609513 0000 0000 0000000000000005 0000000000000000 00000000`, `668e33ef 0001 0000 0000000000000005 00000000`},
			// Other commands are answered by simple replies, errors by chunks.
			{`25609513 0001 0001 0000000000000006 0000000000000000 00000004"ABCD"`, `67446698 00000000 0000000000000006`},
			{`25609513 0000 0001 0000000000000007 000000000003ffff 00000002"xx"`,
				`668e33ef 0001 8001 0000000000000007 00000022 0000001c 001c"beyond the end of the export"`},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			device := newMemoryDevice(256 << 10)
			device.holes = []block.Extent{{Length: 64 << 10}, {Length: 64 << 10, Hole: true}, {Length: 128 << 10}}
			copy(device.bytes, "abcd")
			copy(device.bytes[64<<10-4:], "wxyz")
			c := serve(t, device, Options{}).dial(t)
			for i, e := range test.exchanges {
				c.send(unhex(t, e.send))
				want := unhex(t, e.want)
				if got := c.read(len(want)); !bytes.Equal(got, want) {
					t.Fatalf("exchange %d:\ngot  %x\nwant %x", i, got, want)
				}
			}
			if test.closed {
				c.expectClosed()
				return
			}
			// Nothing but what was expected is on its way.
			_ = c.CloseWriteSide()
			c.expectClosed()
		})
	}
}

func TestDontFragmentSendsZerosOfAHole(t *testing.T) {
	device := newMemoryDevice(256 << 10)
	device.holes = []block.Extent{{Length: 64 << 10}, {Length: 192 << 10, Hole: true}}
	copy(device.bytes, "abcd")
	c := serve(t, device, Options{}).connect(t, true)
	c.request(header{command: cmdRead, flags: cmdFlagDF, cookie: 1, length: 256 << 10}, nil)
	r := c.reply(0)
	if r.kind != chunkData || r.flags != chunkFlagDone || !bytes.Equal(r.payload[8:], device.bytes) {
		t.Errorf("chunk %d with flags %d and %d bytes", r.kind, r.flags, len(r.payload))
	}
}

func TestShortHolesAreReadAsData(t *testing.T) {
	device := newMemoryDevice(1 << 20)
	for range 128 {
		device.holes = append(device.holes, block.Extent{Length: 4096}, block.Extent{Length: 4096, Hole: true})
	}
	c := serve(t, device, Options{}).connect(t, true)
	c.request(header{command: cmdRead, cookie: 1, length: 1 << 20}, nil)
	if r := c.reply(0); r.kind != chunkData || r.flags != chunkFlagDone || len(r.payload) != 8+1<<20 {
		t.Errorf("chunk %d with flags %d and %d bytes", r.kind, r.flags, len(r.payload))
	}
}
