package mariadb

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// binlog is one connection to the log. The library opens and authenticates it. The events are read here, because the library passes
// every event through buffers and a channel, which takes as much time as everything else that is done with the event.
type binlog struct {
	sockets *socketKeeper
	unhook  func() bool
	session *client.Conn
	reader  *bufio.Reader
	// event and header are what next returns, head is the header of a packet, and small has the bytes of events that nobody keeps.
	event  replication.BinlogEvent
	header replication.EventHeader
	head   [4]byte
	small  []byte
}

const (
	readBuffer = 256 << 10
	// smallEvent is the length of the longest packet whose bytes may be reused.
	smallEvent = 4 << 10
	// maxPayload is the length of a packet that has a continuation.
	maxPayload = 1<<24 - 1
	// maxEvent is the longest event that a server may send: max_allowed_packet is at most as much, and a header comes on top.
	maxEvent = 1<<30 + 1<<20
	// hostLength bounds the name under which a replica is listed.
	hostLength = 60
)

// openLog registers as a replica and asks for everything after a transaction.
func (s *Source) openLog(ctx context.Context, id uint32, after gtid) (*binlog, error) {
	state, err := s.startText(ctx, after)
	if err != nil {
		return nil, err
	}
	l := &binlog{sockets: &socketKeeper{}}
	l.unhook = context.AfterFunc(ctx, l.sockets.close)
	if err := l.begin(ctx, s, id, state); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *binlog) begin(ctx context.Context, s *Source, id uint32, state string) (err error) {
	address := net.JoinHostPort(s.host, strconv.Itoa(int(s.port)))
	l.session, err = client.ConnectWithDialer(ctx, "tcp", address, s.options.User, s.options.Password, "", l.sockets.dial, func(c *client.Conn) error {
		if s.options.TLS != nil {
			c.SetTLSConfig(s.options.TLS)
		}
		return nil
	})
	if err != nil {
		return err
	}
	checksums := "'NONE'"
	if s.options.Raw {
		checksums = "@@GLOBAL.binlog_checksum"
	}
	for _, statement := range []string{
		"SET @master_binlog_checksum = " + checksums,
		"SET @mariadb_slave_capability = 4", // it knows GTIDs
		fmt.Sprintf("SET @master_heartbeat_period = %d", heartbeat.Nanoseconds()),
		fmt.Sprintf("SET @slave_connect_state = '%s'", state),
		"SET @slave_gtid_strict_mode = 1",
	} {
		if _, err := l.session.Execute(statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	if err := l.send(registration(id, s.options.User)); err != nil {
		return err
	}
	if _, err := l.session.ReadOKPacket(); err != nil {
		return err
	}
	if err := l.send(request(id)); err != nil {
		return err
	}
	// Every request of the library has been answered, so it has no buffered data of the log.
	l.reader = bufio.NewReaderSize(l.session.Conn.Conn, readBuffer)
	return nil
}

// send sends a command, after room for the header that the library writes.
func (l *binlog) send(command []byte) error {
	l.session.ResetSequence()
	return l.session.WritePacket(append(make([]byte, 4, 4+len(command)), command...))
}

// registration registers a replica: server id, host, user, and no password, port, rank and master.
func registration(id uint32, user string) []byte {
	command := binary.LittleEndian.AppendUint32([]byte{mysql.COM_REGISTER_SLAVE}, id)
	for _, text := range []string{"ebb", user, ""} {
		text = text[:min(len(text), hostLength)]
		command = append(append(command, byte(len(text))), text...)
	}
	return append(command, make([]byte, 2+4+4)...)
}

// request requests the log. The server starts after @slave_connect_state.
func request(id uint32) []byte {
	command := append([]byte{mysql.COM_BINLOG_DUMP}, make([]byte, 4+2)...)
	return binary.LittleEndian.AppendUint32(command, id)
}

// next is the next event, until the next call. The bytes of rows and statements stay as they are, because others refer to them; those of
// events that are read whenever a transaction begins, ends or changes a table are reused.
func (l *binlog) next() (*replication.BinlogEvent, error) {
	data, err := l.packet()
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return nil, fmt.Errorf("received an empty packet: %w", io.ErrUnexpectedEOF)
	}
	switch data[0] {
	case mysql.OK_HEADER:
	case mysql.ERR_HEADER:
		return nil, l.session.HandleErrorPacket(data)
	case mysql.EOF_HEADER:
		return nil, fmt.Errorf("the server ended the dump of its log: %w", io.EOF)
	default:
		return nil, fmt.Errorf("received an unknown packet, which begins with %#x", data[0])
	}
	raw := data[1:]
	if err := l.header.Decode(raw); err != nil {
		return nil, err
	}
	if int(l.header.EventSize) != len(raw) {
		return nil, fmt.Errorf("received an event of %d bytes whose header says %d", len(raw), l.header.EventSize)
	}
	l.event = replication.BinlogEvent{RawData: raw, Header: &l.header}
	return &l.event, nil
}

// packet reads a packet with its continuations.
func (l *binlog) packet() ([]byte, error) {
	var data []byte
	for {
		if _, err := io.ReadFull(l.reader, l.head[:]); err != nil {
			return nil, err
		}
		length := int(l.head[0]) | int(l.head[1])<<8 | int(l.head[2])<<16
		if len(data)+length > maxEvent {
			return nil, fmt.Errorf("received an event of more than %d bytes", maxEvent)
		}
		part, err := l.buffer(length)
		if err != nil {
			return nil, err
		}
		if _, err := io.ReadFull(l.reader, part); err != nil {
			return nil, err
		}
		if data == nil {
			data = part
		} else {
			data = append(data, part...)
		}
		if length < maxPayload {
			return data, nil
		}
	}
}

// buffer is where the packet that comes next is read to: small if the event in it is one that nobody keeps.
func (l *binlog) buffer(length int) ([]byte, error) {
	const typ = 1 + 4 // after the first byte of the packet, and the time
	if length <= typ || length > smallEvent {
		return make([]byte, length), nil
	}
	start, err := l.reader.Peek(typ + 1)
	if err != nil {
		return nil, err
	}
	switch replication.EventType(start[typ]) {
	case replication.MARIADB_GTID_EVENT, replication.XID_EVENT, replication.TABLE_MAP_EVENT:
		if l.small == nil {
			l.small = make([]byte, smallEvent)
		}
		return l.small[:length:length], nil
	}
	return make([]byte, length), nil
}

// close closes the connection, which ends a read.
func (l *binlog) close() {
	l.unhook()
	l.sockets.close()
}
