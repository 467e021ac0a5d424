package mariadb

import (
	"context"
	"crypto/tls"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Options say which server to read and as whom.
type Options struct {
	// Address is host:port.
	Address string
	// User needs REPLICATION SLAVE, BINLOG MONITOR, and SELECT on the tables that are to be read. RELOAD makes Tables exact
	// while definitions are being executed.
	User, Password string
	// TLS, if any, is how connections are secured.
	TLS *tls.Config
	// ServerID is under which id the first read registers as a replica; concurrent reads take the ones above it. 0 means ids
	// at random from the upper half of what there is. Two readers with the same id end each other's connections.
	ServerID uint32
	// Logger is told of lost and resumed connections; nil means nobody is.
	Logger *slog.Logger
}

// Source reads one server. It implements stream.Source.
type Source struct {
	options Options
	host    string
	port    uint16
	db      *sql.DB
	log     *slog.Logger

	mu    sync.Mutex
	slots map[uint32]bool // server ids that reads are using
}

var _ stream.Source = (*Source)(nil)

// How long the server may be silent. It sends a heartbeat when it has nothing else to say.
const (
	heartbeat   = time.Second
	readTimeout = 15 * time.Second
	dialTimeout = 10 * time.Second
)

// Open prepares to read a server. It does not connect yet.
func Open(options Options) (*Source, error) {
	host, text, err := net.SplitHostPort(options.Address)
	if err != nil {
		return nil, fmt.Errorf("source address %q is not host:port: %w", options.Address, stream.ErrUnusable)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("source address %q has no port from 1 to 65535: %w", options.Address, stream.ErrUnusable)
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.TLS = "tcp", options.Address, options.User, options.Password, options.TLS
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = dialTimeout, readTimeout, readTimeout
	cfg.InterpolateParams, cfg.Logger = true, &mysql.NopLogger{}
	if err := cfg.Apply(mysql.Charset("utf8mb4", "")); err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", options.Address, err)
	}
	s := &Source{options: options, host: host, port: uint16(port), db: sql.OpenDB(connector), log: options.Logger, slots: map[uint32]bool{}}
	s.db.SetMaxOpenConns(4)
	s.db.SetMaxIdleConns(1)
	s.db.SetConnMaxIdleTime(30 * time.Second)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("source", options.Address)
	return s, nil
}

// Close gives the connections for queries back. Reads end by their own contexts.
func (s *Source) Close() error { return s.db.Close() }

// takeID reserves a server id for one read.
func (s *Source) takeID() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := uint32(0); ; n++ {
		id := s.options.ServerID + n
		if s.options.ServerID == 0 {
			id = 1<<31 | rand.Uint32()
		}
		if id != 0 && !s.slots[id] {
			s.slots[id] = true
			return id
		}
	}
}

func (s *Source) giveID(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.slots, id)
}

// Head is the newest position.
func (s *Source) Head(ctx context.Context) (stream.Position, error) {
	state, err := s.logState(ctx)
	if err != nil {
		return 0, err
	}
	return stream.Position(state.head.seq), nil
}

const systemSchemas = "('mysql','information_schema','performance_schema','sys')"

func isSystem(schema string) bool {
	switch schema {
	case "mysql", "information_schema", "performance_schema", "sys":
		return true
	}
	return false
}

// Tables are the base tables outside the server's own schemas that the user may see.
//
// A definition shows among the tables a little before it shows in the log. With the privilege RELOAD, definitions are held
// up for the moment that it takes to list the tables (rows are not). Without it, they are listed until nothing was
// logged about tables while two lists in a row, some time apart, were the same.
func (s *Source) Tables(ctx context.Context) ([]stream.Table, stream.Position, error) {
	for tries := range 10 {
		tables, position, err := s.tablesHeld(ctx)
		if err == nil {
			return tables, position, nil
		}
		if !errors.Is(err, errSkipped) {
			if code, ok := errorCode(err); ok && slices.Contains([]uint16{codeNeedPrivilege, codeDatabaseDenied, codeAccessDenied, codeLockWait}, code) {
				break
			}
			return nil, 0, err
		}
		select { // the definition that was in the way goes on now
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(time.Duration(tries+1) * 10 * time.Millisecond):
		}
	}
	return s.tablesWatched(ctx)
}

// tablesHeld lists the tables while the server holds definitions up.
func (s *Source) tablesHeld(ctx context.Context) (tables []stream.Table, at stream.Position, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, 0, s.wrap("connect", err)
	}
	defer func() {
		// The server lets definitions go on when the session ends, whatever became of it.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		conn.Close()
	}()
	for _, statement := range []string{"SET SESSION lock_wait_timeout = 5", "BACKUP STAGE START", "BACKUP STAGE BLOCK_DDL"} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return nil, 0, fmt.Errorf("source %s: hold definitions up: %w", s.options.Address, err)
		}
	}
	// All in this session: others may be waiting in theirs for this one to end.
	state, err := s.logStateBy(ctx, conn)
	if err != nil {
		return nil, 0, err
	}
	if tables, err = s.listTables(ctx, conn); err != nil {
		return nil, 0, err
	}
	return tables, stream.Position(state.head.seq), s.noneSkipped(ctx, conn)
}

// errSkipped: the list is not whole.
var errSkipped = errors.New("a table was skipped")

// noneSkipped fails if the list that was just read lacks tables. A definition that is held up may have locked its table
// already; the server leaves such a table out, rather than wait for a session that waits for this one, and warns.
func (s *Source) noneSkipped(ctx context.Context, by querier) error {
	rows, err := by.QueryContext(ctx, "SHOW WARNINGS")
	if err != nil {
		return s.wrap("list tables", err)
	}
	defer rows.Close()
	for rows.Next() {
		var level, text string
		var code uint16
		if err := rows.Scan(&level, &code, &text); err != nil {
			return s.wrap("list tables", err)
		}
		if code == codeSkippedTable {
			return fmt.Errorf("source %s: %s: %w", s.options.Address, text, errSkipped)
		}
	}
	return s.wrap("list tables", rows.Err())
}

// querier is a pool or one session.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// settle is how long a definition may take from the tables to the log without being seen.
const settle = 100 * time.Millisecond

// tablesWatched lists the tables until nothing changes about them.
func (s *Source) tablesWatched(ctx context.Context) ([]stream.Table, stream.Position, error) {
	for range 100 {
		before, err := s.Head(ctx)
		if err != nil {
			return nil, 0, err
		}
		first, err := s.listTables(ctx, s.db)
		if err != nil {
			return nil, 0, err
		}
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(settle):
		}
		second, err := s.listTables(ctx, s.db)
		if err != nil {
			return nil, 0, err
		}
		after, err := s.Head(ctx)
		if err != nil {
			return nil, 0, err
		}
		defined, err := s.definedBetween(ctx, before, after)
		if err != nil {
			return nil, 0, err
		}
		if !defined && slices.Equal(first, second) {
			return second, before, nil
		}
	}
	return nil, 0, fmt.Errorf("source %s: tables come and go faster than they can be listed; grant RELOAD to user %q, or try again when fewer definitions are being executed", s.options.Address, s.options.User)
}

// definedBetween says whether a definition of a table was logged after one position and up to another.
func (s *Source) definedBetween(ctx context.Context, from, to stream.Position) (bool, error) {
	if from == to {
		return false, nil
	}
	defined, enough := false, errors.New("read as far as needed")
	err := s.ReadOf(ctx, from, stream.NoTable, func(t *stream.Transaction) error {
		if t.Position <= to && t.DDL != nil {
			defined = true
		}
		if defined || t.Position >= to {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return defined, err
}

func (s *Source) listTables(ctx context.Context, by querier) ([]stream.Table, error) {
	rows, err := by.QueryContext(ctx, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE' AND TABLE_SCHEMA NOT IN "+
		systemSchemas+" ORDER BY TABLE_SCHEMA, TABLE_NAME")
	if err != nil {
		return nil, s.wrap("list tables", err)
	}
	defer rows.Close()
	var tables []stream.Table
	for rows.Next() {
		var t stream.Table
		if err := rows.Scan(&t.Schema, &t.Name); err != nil {
			return nil, s.wrap("list tables", err)
		}
		tables = append(tables, t)
	}
	return tables, s.wrap("list tables", rows.Err())
}

// PartlyLogged names what changes at the source without the log saying so, each with its reason: tables with foreign keys
// that cascade, and tables with system versioning. A copy of them may come to differ.
func (s *Source) PartlyLogged(ctx context.Context) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT CONCAT(CONSTRAINT_SCHEMA, '.', TABLE_NAME, ': foreign key ', CONSTRAINT_NAME, ' changes rows by cascade, which the binary log does not tell')
		FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE DELETE_RULE IN ('CASCADE','SET NULL','SET DEFAULT') OR UPDATE_RULE IN ('CASCADE','SET NULL','SET DEFAULT')
		UNION ALL SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME, ': is system versioned; its history cannot be written at a sink') FROM information_schema.TABLES WHERE TABLE_TYPE = 'SYSTEM VERSIONED'
		ORDER BY 1`)
	if err != nil {
		return nil, s.wrap("look for cascades", err)
	}
	defer rows.Close()
	var found []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, s.wrap("look for cascades", err)
		}
		found = append(found, text)
	}
	return found, s.wrap("look for cascades", rows.Err())
}

// wrap names the server and what was being done to it. Refused credentials do not get better by trying again.
func (s *Source) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	if code, ok := errorCode(err); ok {
		switch code {
		case codeAccessDenied, codeNotAllowedHost:
			return fmt.Errorf("source %s: user %q is refused; check the password and from where the user may connect: %w (%w)", s.options.Address, s.options.User, stream.ErrUnusable, err)
		case codeNeedPrivilege, codeTableDenied, codeDatabaseDenied:
			return fmt.Errorf("source %s: user %q lacks a privilege to %s; %s: %w (%w)", s.options.Address, s.options.User, doing, s.grant(), stream.ErrUnusable, err)
		}
	}
	return fmt.Errorf("source %s: %s: %w", s.options.Address, doing, err)
}

func (s *Source) grant() string {
	return fmt.Sprintf("run GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO '%s'", s.options.User)
}

// Codes of errors that the server gives.
const (
	codeDatabaseDenied = 1044
	codeAccessDenied   = 1045
	codeNotAllowedHost = 1130
	codeTableDenied    = 1142
	codeLockWait       = 1205
	codeSkippedTable   = 1684
	codeNeedPrivilege  = 1227
	codeReadingBinlog  = 1236
)

// errorCode is the server's code of an error, from whichever of the two libraries it comes.
func errorCode(err error) (uint16, bool) {
	var fromDriver *mysql.MySQLError
	if errors.As(err, &fromDriver) {
		return fromDriver.Number, true
	}
	return replicationCode(err)
}
