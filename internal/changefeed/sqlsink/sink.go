package sqlsink

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Options of a sink.
type Options struct {
	// Address is host:port.
	Address string
	// User needs every privilege on the schemas that are written and on Schema.
	User, Password string
	// TLS, if any, is how connections are secured.
	TLS *tls.Config
	// Schema holds the sink's own tables; "ebb" if empty.
	Schema string
	// Changefeed is namespace/name/uid.
	Changefeed string
	// MaxConnections bounds the concurrent writes; 8 if 0.
	MaxConnections int
	// Forward says that rows are forwarded as they were logged where the table at the sink is the same as at the source.
	Forward bool
	// Logger, if any, logs errors after which the sink retries.
	Logger *slog.Logger
}

// Sink writes one server for one changefeed. It implements stream.Sink.
type Sink struct {
	options Options
	db      *sql.DB
	log     *slog.Logger
	// progress, intents, incarnation and snapshots are the sink's own tables, quoted.
	progress, intents, incarnation, snapshots string

	mu      sync.Mutex
	server  *server // once it is known
	failing failing
	// stale: the sink's own tables may lack something, because an earlier state of the server was restored.
	stale atomic.Bool
	// forwarded is how many row changes were forwarded, and told for which reasons a table that is not was logged.
	forwarded atomic.Int64
	told      map[string]bool
}

var _ stream.Sink = (*Sink)(nil)

// server is what the sink has to know of the server.
type server struct {
	// packet is max_allowed_packet.
	packet int
	// text is why nothing is forwarded to it, and collations are the numbers of its collations, if anything is to be forwarded.
	text       textReason
	collations map[string]uint64
}

const (
	defaultSchema      = stream.OwnSchema
	defaultConnections = 8
	changefeedLength   = 512
	dialTimeout        = 10 * time.Second
	// A transaction that is idle for so long belongs to a process that is dead or frozen. The server ends it, so that the next
	// owner need not wait.
	idleTransaction = 5 * time.Second
)

// sqlMode makes the server store every value as it is, or refuse it.
const sqlMode = "STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION"

// Open prepares to write a server. It does not connect yet.
func Open(options Options) (*Sink, error) {
	if options.Schema == "" {
		options.Schema = defaultSchema
	}
	if options.MaxConnections <= 0 {
		options.MaxConnections = defaultConnections
	}
	if options.Changefeed == "" || len(options.Changefeed) > changefeedLength {
		return nil, fmt.Errorf("sink %s: the name of the changefeed must have 1 to %d bytes, not %d: %w", options.Address, changefeedLength, len(options.Changefeed), stream.ErrUnusable)
	}
	connector, err := mysql.NewConnector(config(options))
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", options.Address, err)
	}
	s := &Sink{options: options, db: sql.OpenDB(connector), log: options.Logger}
	s.progress, s.intents, s.incarnation = name(options.Schema)+".`progress`", name(options.Schema)+".`ddl`", name(options.Schema)+".`incarnation`"
	s.snapshots = name(options.Schema) + ".`snapshot`"
	s.db.SetMaxOpenConns(options.MaxConnections)
	s.db.SetMaxIdleConns(options.MaxConnections)
	s.db.SetConnMaxIdleTime(30 * time.Second)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("sink", options.Address, "changefeed", feedName(options.Changefeed))
	return s, nil
}

// feedName is namespace/name.
func feedName(changefeed string) string {
	if i := strings.LastIndexByte(changefeed, '/'); i > 0 {
		return changefeed[:i]
	}
	return changefeed
}

// config are the settings of every session. With binary as the character set, literals are stored byte for byte.
func config(options Options) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.TLS = "tcp", options.Address, options.User, options.Password, options.TLS
	cfg.Timeout, cfg.ClientFoundRows, cfg.InterpolateParams, cfg.MultiStatements, cfg.Logger = dialTimeout, true, true, true, &mysql.NopLogger{}
	cfg.Params = map[string]string{
		"time_zone":          "'+00:00'",
		"sql_mode":           "'" + sqlMode + "'",
		"foreign_key_checks": "0",
		// The server may have others for all sessions: statements outside a transaction would not be committed, or lists cut.
		"autocommit":       "1",
		"completion_type":  "0",
		"sql_select_limit": "18446744073709551615",
		"sql_big_selects":  "1",
		"sql_safe_updates": "0",
		// Variables that only MariaDB has are in a comment that only MariaDB executes.
		"unique_checks": fmt.Sprintf("1 /*M!100302 , check_constraint_checks=0, max_statement_time=0, idle_write_transaction_timeout=%d */", idleTransaction/time.Second),
		"wait_timeout":  "60",
	}
	_ = cfg.Apply(mysql.Charset("binary", "")) // setting it cannot fail
	return cfg
}

// Close closes the connections.
func (s *Sink) Close() error { return s.db.Close() }

// Check implements stream.Sink.
func (s *Sink) Check(ctx context.Context) error {
	_, err := s.prepare(ctx)
	return err
}

func (s *Sink) unusable(format string, args ...any) error {
	return fmt.Errorf("sink %s: %s: %w", s.options.Address, fmt.Sprintf(format, args...), stream.ErrUnusable)
}

// The sink's own tables. Names are binary, so that they are compared byte by byte.
const createProgress = `CREATE TABLE IF NOT EXISTS %s (
	feed VARBINARY(512) NOT NULL COMMENT 'namespace/name/uid of the changefeed',
	table_schema VARBINARY(256) NOT NULL,
	table_name VARBINARY(256) NOT NULL,
	since BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'position of the DDL that gave the table its name; 0 if it had it before',
	placement BIGINT NOT NULL COMMENT 'epoch of the placement of the changefeed that owns the table; -1: it left the filter; -2: it was dropped or renamed',
	counter BIGINT NOT NULL COMMENT 'epoch of the owner within the placement',
	position BIGINT UNSIGNED NOT NULL COMMENT 'everything up to here is in the table',
	part BIGINT NOT NULL DEFAULT 0 COMMENT 'changes of a large transaction just after the position that are in the table',
	part_at BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'the position that part belongs to; part is 0 at any other',
	gtid VARBINARY(64) NOT NULL DEFAULT '' COMMENT 'of a transaction at the checkpoint or before it',
	PRIMARY KEY (feed, table_schema, table_name, since),
	KEY by_table (table_schema, table_name)
) ENGINE=InnoDB COMMENT='position and owner of each table; written by ebb'`

const createIntents = `CREATE TABLE IF NOT EXISTS %s (
	changefeed VARBINARY(512) NOT NULL,
	position BIGINT UNSIGNED NOT NULL,
	placement BIGINT NOT NULL,
	counter BIGINT NOT NULL,
	digest VARBINARY(64) NOT NULL COMMENT 'of SHOW CREATE TABLE of the tables before the statement',
	done BOOLEAN NOT NULL,
	statement LONGBLOB NOT NULL,
	PRIMARY KEY (changefeed, position)
) ENGINE=InnoDB COMMENT='DDL that was begun, and whether it is executed; written by ebb'`

// prepare reads the variables of the server and creates the sink's own tables, once, and again after an error about missing ones.
func (s *Sink) prepare(ctx context.Context) (*server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale.Swap(false) {
		s.server = nil
	}
	if s.server != nil {
		return s.server, nil
	}
	var version string
	v := &server{}
	if err := s.db.QueryRowContext(ctx, "SELECT VERSION(), @@max_allowed_packet").Scan(&version, &v.packet); err != nil {
		return nil, s.wrap("connect", err)
	}
	if !strings.Contains(strings.ToLower(version), "mariadb") {
		return nil, s.unusable("version %s is not MariaDB, and DDL of MariaDB means something else to MySQL; use MariaDB as the sink", version)
	}
	for _, statement := range []string{
		"CREATE DATABASE IF NOT EXISTS " + name(s.options.Schema),
		fmt.Sprintf(createProgress, s.progress),
		"ALTER TABLE " + s.progress + " ADD COLUMN IF NOT EXISTS part BIGINT NOT NULL DEFAULT 0 COMMENT 'changes of a large transaction just after the position that are in the table' AFTER position," +
			" ADD COLUMN IF NOT EXISTS part_at BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'the position that part belongs to; part is 0 at any other' AFTER part," +
			" ADD COLUMN IF NOT EXISTS gtid VARBINARY(64) NOT NULL DEFAULT '' COMMENT 'of a transaction at the checkpoint or before it' AFTER part_at",
		"CREATE INDEX IF NOT EXISTS by_table ON " + s.progress + " (table_schema, table_name)",
		fmt.Sprintf(createIncarnation, s.incarnation),
		fmt.Sprintf(createIntents, s.intents),
		fmt.Sprintf(createSnapshots, s.snapshots),
	} {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return nil, s.wrap("create the tables for the progress in schema "+s.options.Schema, err)
		}
	}
	if err := s.migrate(ctx); err != nil {
		return nil, s.wrap("change the table "+s.progress+" to the layout of this version", err)
	}
	if s.options.Forward {
		var err error
		if v.text, err = s.probeForward(ctx); err == nil {
			v.collations, err = s.collations(ctx)
		}
		if err != nil {
			return nil, s.wrap("find out whether rows can be forwarded", err)
		}
	}
	s.server = v
	return v, nil
}

// wrap adds the server and the operation to an error. One about a missing table or column makes the next attempt prepare again. Refused credentials and missing privileges make the sink unusable.
func (s *Sink) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	var e *mysql.MySQLError
	if errors.As(err, &e) && slices.Contains([]uint16{codeUnknownSchema, codeUnknownColumn, codeNoSuchTable}, e.Number) {
		s.stale.Store(true)
	}
	if refused := s.refusal(doing, err); refused != nil {
		return refused
	}
	return fmt.Errorf("sink %s: %s: %w", s.options.Address, doing, err)
}

// refusal is the error of an operation that the server refuses to this user, or to all; nil if that is not what an error is about.
func (s *Sink) refusal(doing string, err error) error {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return nil
	}
	switch e.Number {
	case 1045, 1130:
		return fmt.Errorf("sink %s: access is denied for user %q; check the password and the hosts that the user may connect from: %w (%w)", s.options.Address, s.options.User, stream.ErrUnusable, err)
	case 1290, 1836:
		return s.unusable("the server is read-only; SET GLOBAL read_only=OFF, or use the primary server as the sink (%v)", err)
	case 1044, codeNoTablePrivilege, 1143, codeNeedPrivilege, 1370:
		return fmt.Errorf("sink %s: user %q lacks a privilege to %s; run GRANT ALL ON *.* TO '%s', or grant it on each replicated schema and on %s: %w (%w)",
			s.options.Address, s.options.User, doing, s.options.User, s.options.Schema, stream.ErrUnusable, err)
	}
	return nil
}
