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

// Options of a source.
type Options struct {
	// Address is host:port.
	Address string
	// User needs REPLICATION SLAVE, BINLOG MONITOR, and SELECT on the replicated tables. With RELOAD, Tables is fast and exact
	// while DDL is being executed.
	User, Password string
	// TLS, if any, is how connections are secured.
	TLS *tls.Config
	// ServerID is the server id with which the first read registers as a replica; concurrent reads use the next ones. 0 means
	// random ids from the upper half of the range. The server disconnects one of two readers with the same id.
	ServerID uint32
	// LargeBytes is the size, in memory, above which a transaction is read in parts, of a quarter of that size; 16 MiB if 0.
	LargeBytes int
	// Raw keeps the changes of a transaction as they were logged, so that a sink can forward them, and decodes values only when somebody
	// asks for them. It needs checksums in the log (binlog_checksum=CRC32), which are verified.
	Raw bool
	// Logger, if any, logs lost connections.
	Logger *slog.Logger
}

// Source reads one server. It implements stream.Source.
type Source struct {
	options Options
	host    string
	port    uint16
	db      *sql.DB
	copies  *sql.DB // for snapshots
	log     *slog.Logger
	// shapes is after how many descriptions of tables a reader forgets all of them, with those that are not in use any more.
	shapes uint64

	mu    sync.Mutex
	slots map[uint32]bool // server ids that reads are using
}

var _ stream.Source = (*Source)(nil)

// Limits of a connection. The server sends a heartbeat when it has nothing else to send.
const (
	heartbeat   = time.Second
	readTimeout = 15 * time.Second
	dialTimeout = 10 * time.Second
)

const (
	defaultLargeBytes = 16 << 20
	// partsOfLarge is how many parts are as large as a transaction that is just not read in parts.
	partsOfLarge = 4
)

// Open prepares to read a server. It does not connect yet.
func Open(options Options) (*Source, error) {
	host, text, err := net.SplitHostPort(options.Address)
	if err != nil {
		return nil, fmt.Errorf("source address %q is not of the form host:port: %w", options.Address, stream.ErrUnusable)
	}
	if options.LargeBytes <= 0 {
		options.LargeBytes = defaultLargeBytes
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("source address %q has no port from 1 to 65535: %w", options.Address, stream.ErrUnusable)
	}
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.TLS = "tcp", options.Address, options.User, options.Password, options.TLS
	cfg.Timeout, cfg.ReadTimeout, cfg.WriteTimeout = dialTimeout, readTimeout, readTimeout
	cfg.InterpolateParams, cfg.Logger = true, &mysql.NopLogger{}
	cfg.Params = sessionSettings()
	cfg.Params["sql_mode"] = "''"
	if err := cfg.Apply(mysql.Charset("utf8mb4", "")); err != nil {
		return nil, err
	}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", options.Address, err)
	}
	copies, err := mysql.NewConnector(snapshotConfig(cfg))
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", options.Address, err)
	}
	s := &Source{options: options, host: host, port: uint16(port), db: sql.OpenDB(connector), copies: sql.OpenDB(copies), log: options.Logger, slots: map[uint32]bool{}, shapes: cachedShapes}
	s.copies.SetMaxIdleConns(1)
	s.copies.SetConnMaxIdleTime(30 * time.Second)
	s.db.SetMaxOpenConns(4)
	s.db.SetMaxIdleConns(1)
	s.db.SetConnMaxIdleTime(30 * time.Second)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("source", options.Address)
	return s, nil
}

// sessionSettings are those of every session. The server may have others for all sessions: lists would be cut, or a transaction without an end
// lock tables.
func sessionSettings() map[string]string {
	return map[string]string{"autocommit": "1", "sql_select_limit": "18446744073709551615", "sql_big_selects": "1"}
}

// Close closes the connections for queries. Reads end with their contexts.
func (s *Source) Close() error { return errors.Join(s.db.Close(), s.copies.Close()) }

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

// Tables are the base tables and sequences outside the system schemas that the user has a privilege on.
//
// The effect of DDL is in information_schema a little before the DDL is in the log. With the privilege RELOAD, DDL is blocked while
// the tables are listed (changes of rows are not). Without it, the tables are listed until two lists, some time apart, are equal and
// no DDL was logged in between.
func (s *Source) Tables(ctx context.Context) ([]stream.Table, stream.Position, error) {
	return s.tablesWith(ctx, nil)
}

// lister reads more about tables that were listed. It returns a text that differs if what it has read does.
type lister func(ctx context.Context, by querier, tables []stream.Table) (string, error)

// tablesWith lists the tables, and reads more about them as of the same position.
func (s *Source) tablesWith(ctx context.Context, more lister) ([]stream.Table, stream.Position, error) {
	waited := 0
	for tries := range 10 {
		tables, position, err := s.tablesBlocked(ctx, more)
		if err == nil {
			return tables, position, nil
		}
		pause := time.Duration(tries+1) * 10 * time.Millisecond // DDL that had locked a table continues now
		if !errors.Is(err, errSkipped) {
			code, ok := errorCode(err)
			if ok && slices.Contains([]uint16{codeNeedPrivilege, codeDatabaseDenied, codeAccessDenied}, code) {
				break
			}
			if !ok || code != codeLockWait {
				return nil, 0, err
			}
			// One session at a time may block DDL, and many changefeeds may begin at the same time.
			if waited++; waited == blockTries {
				break
			}
			pause = rand.N(time.Second)
		}
		select {
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		case <-time.After(pause):
		}
	}
	return s.tablesWatched(ctx, more)
}

// blockTries is how often it is tried to block DDL while another session does, each time for the seconds of lock_wait_timeout for each of two
// locks: together well below the time that a maintainer has to begin.
const blockTries = 3

// tablesBlocked lists the tables while the server blocks DDL.
func (s *Source) tablesBlocked(ctx context.Context, more lister) (tables []stream.Table, at stream.Position, err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return nil, 0, s.wrap("connect", err)
	}
	defer func() {
		// The server unblocks DDL when the session ends, so the session is closed in any case.
		_ = conn.Raw(func(any) error { return driver.ErrBadConn })
		conn.Close()
	}()
	for _, statement := range []string{"SET SESSION lock_wait_timeout = 2", "BACKUP STAGE START", "BACKUP STAGE BLOCK_DDL"} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return nil, 0, fmt.Errorf("source %s: block DDL while tables are listed: %w", s.options.Address, err)
		}
	}
	// All queries are made in this session: another session might wait for this one to end.
	state, err := s.logStateBy(ctx, conn)
	if err != nil {
		return nil, 0, err
	}
	if tables, err = s.listTables(ctx, conn); err != nil {
		return nil, 0, err
	}
	if err = s.noneSkipped(ctx, conn); err == nil && more != nil {
		_, err = more(ctx, conn, tables)
	}
	return tables, stream.Position(state.head.seq), err
}

// errSkipped: the list of tables is incomplete.
var errSkipped = errors.New("the server left a locked table out of the list of tables")

// noneSkipped returns errSkipped if the list that was just read is incomplete. DDL that is blocked may have locked its table already;
// the server leaves such a table out of the list, with a warning, because its session waits for this one.
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

// settle is the longest time from when the effect of DDL is in information_schema until the DDL is in the log.
const settle = 100 * time.Millisecond

// tablesWatched lists the tables until nothing changes about them.
func (s *Source) tablesWatched(ctx context.Context, more lister) ([]stream.Table, stream.Position, error) {
	if more == nil {
		more = func(context.Context, querier, []stream.Table) (string, error) { return "", nil }
	}
	for range 100 {
		before, err := s.Head(ctx)
		if err != nil {
			return nil, 0, err
		}
		first, err := s.listTables(ctx, s.db)
		if err != nil {
			return nil, 0, err
		}
		found, err := more(ctx, s.db, first)
		if code, known := errorCode(err); known && code == codeNoSuchTable {
			continue // it was dropped meanwhile
		} else if err != nil {
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
		again, err := more(ctx, s.db, second)
		if code, known := errorCode(err); known && code == codeNoSuchTable {
			continue
		} else if err != nil {
			return nil, 0, err
		}
		after, err := s.Head(ctx)
		if err != nil {
			return nil, 0, err
		}
		changed, err := s.ddlBetween(ctx, before, after)
		if err != nil {
			return nil, 0, err
		}
		if !changed && found == again && slices.Equal(first, second) {
			return second, before, nil
		}
	}
	return nil, 0, fmt.Errorf("source %s: tables are created and dropped faster than they can be listed; grant RELOAD to user %q, or execute less DDL until the changefeed runs", s.options.Address, s.options.User)
}

// ddlBetween reports whether DDL was logged after one position and up to another.
func (s *Source) ddlBetween(ctx context.Context, from, to stream.Position) (bool, error) {
	if from == to {
		return false, nil
	}
	found, enough := false, errors.New("read as far as needed")
	err := s.ReadOf(ctx, from, stream.NoTable, func(t *stream.Transaction) error {
		if t.Position <= to && t.DDL != nil {
			found = true
		}
		if found || t.Position >= to {
			return enough
		}
		return nil
	})
	if errors.Is(err, enough) {
		err = nil
	}
	return found, err
}

func (s *Source) listTables(ctx context.Context, by querier) ([]stream.Table, error) {
	rows, err := by.QueryContext(ctx, "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE', 'SEQUENCE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN "+
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

// PartlyLogged returns the tables whose changes are not all in the log, each with the reason: tables with foreign keys that cascade,
// and tables with system versioning. At the sink they may differ.
func (s *Source) PartlyLogged(ctx context.Context) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT CONCAT(CONSTRAINT_SCHEMA, '.', TABLE_NAME, ': foreign key ', CONSTRAINT_NAME, ' changes rows by cascade, which is not in the binary log')
		FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE DELETE_RULE IN ('CASCADE','SET NULL','SET DEFAULT') OR UPDATE_RULE IN ('CASCADE','SET NULL','SET DEFAULT')
		UNION ALL SELECT CONCAT(TABLE_SCHEMA, '.', TABLE_NAME, ': it is system versioned, and its history cannot be written to a sink') FROM information_schema.TABLES WHERE TABLE_TYPE = 'SYSTEM VERSIONED'
		ORDER BY 1`)
	if err != nil {
		return nil, s.wrap("list foreign keys", err)
	}
	defer rows.Close()
	var found []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, s.wrap("list foreign keys", err)
		}
		found = append(found, text)
	}
	return found, s.wrap("list foreign keys", rows.Err())
}

// wrap adds the server and the operation to an error. Refused credentials and missing privileges make the source unusable.
func (s *Source) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	if code, ok := errorCode(err); ok {
		switch code {
		case codeAccessDenied, codeNotAllowedHost:
			return fmt.Errorf("source %s: access is denied for user %q; check the password and the hosts that the user may connect from: %w (%w)", s.options.Address, s.options.User, stream.ErrUnusable, err)
		case codeNeedPrivilege, codeTableDenied, codeDatabaseDenied:
			return fmt.Errorf("source %s: user %q lacks a privilege to %s; %s: %w (%w)", s.options.Address, s.options.User, doing, s.grant(), stream.ErrUnusable, err)
		}
	}
	return fmt.Errorf("source %s: %s: %w", s.options.Address, doing, err)
}

func (s *Source) grant() string {
	return fmt.Sprintf("run GRANT REPLICATION SLAVE, BINLOG MONITOR, SELECT ON *.* TO '%s'", s.options.User)
}

// Error codes of the server.
const (
	codeDatabaseDenied = 1044
	codeAccessDenied   = 1045
	codeNotAllowedHost = 1130
	codeTableDenied    = 1142
	codeNoSuchTable    = 1146
	codeLockWait       = 1205
	codeSkippedTable   = 1684
	codeNeedPrivilege  = 1227
	codeReadingBinlog  = 1236
)

// errorCode is the server's code of an error of either of the two libraries.
func errorCode(err error) (uint16, bool) {
	var fromDriver *mysql.MySQLError
	if errors.As(err, &fromDriver) {
		return fromDriver.Number, true
	}
	return replicationCode(err)
}
