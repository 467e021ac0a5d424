package sqlsink

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Options say which server to write and as whom.
type Options struct {
	// Address is host:port.
	Address string
	// User needs every privilege on the schemas that are written and on Schema.
	User, Password string
	// TLS, if any, is how connections are secured.
	TLS *tls.Config
	// Schema holds the sink's own tables; "ebb" if empty.
	Schema string
	// Changefeed is whose progress it is: namespace/name/uid.
	Changefeed string
	// MaxConnections is how many writes may be under way at once; 8 if 0.
	MaxConnections int
	// Logger is told of what is tried again; nil means nobody is.
	Logger *slog.Logger
}

// Sink writes one server for one changefeed. It implements stream.Sink.
type Sink struct {
	options Options
	db      *sql.DB
	log     *slog.Logger
	// progress and intents are the sink's own tables, quoted.
	progress, intents string

	mu      sync.Mutex
	server  *server // once it is known
	failing failing
}

var _ stream.Sink = (*Sink)(nil)

// server is what is true of the server.
type server struct {
	mariaDB bool
	// packet is the longest statement that it takes.
	packet int
}

const (
	defaultSchema      = "ebb"
	defaultConnections = 8
	changefeedLength   = 512
	dialTimeout        = 10 * time.Second
	// A transaction that does nothing for so long belongs to a process that is gone or frozen. The server ends it, so that
	// its successor need not wait.
	idleTransaction = 5 * time.Second
)

// sqlMode makes the server take every value as it is, and refuse what it cannot.
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
		return nil, fmt.Errorf("sink %s: the name of the changefeed must have from 1 to %d bytes, not %d: %w", options.Address, changefeedLength, len(options.Changefeed), stream.ErrUnusable)
	}
	connector, err := mysql.NewConnector(config(options))
	if err != nil {
		return nil, fmt.Errorf("sink %s: %w", options.Address, err)
	}
	s := &Sink{options: options, db: sql.OpenDB(connector), log: options.Logger}
	s.progress, s.intents = name(options.Schema)+".`progress`", name(options.Schema)+".`ddl`"
	s.db.SetMaxOpenConns(options.MaxConnections)
	s.db.SetMaxIdleConns(options.MaxConnections)
	s.db.SetConnMaxIdleTime(30 * time.Second)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("sink", options.Address, "changefeed", options.Changefeed)
	return s, nil
}

// config is how every session is set up. With binary as the character set literals are stored byte for byte.
func config(options Options) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.TLS = "tcp", options.Address, options.User, options.Password, options.TLS
	cfg.Timeout, cfg.ClientFoundRows, cfg.InterpolateParams, cfg.MultiStatements, cfg.Logger = dialTimeout, true, true, true, &mysql.NopLogger{}
	cfg.Params = map[string]string{
		"time_zone":          "'+00:00'",
		"sql_mode":           "'" + sqlMode + "'",
		"foreign_key_checks": "0",
		// What only MariaDB has is in a comment that only MariaDB reads.
		"unique_checks": fmt.Sprintf("1 /*M!100302 , check_constraint_checks=0, idle_write_transaction_timeout=%d */", idleTransaction/time.Second),
		"wait_timeout":  "60",
	}
	_ = cfg.Apply(mysql.Charset("binary", "")) // setting it cannot fail
	return cfg
}

// Close gives the connections back.
func (s *Sink) Close() error { return s.db.Close() }

// Check says what about the server would keep it from being written.
func (s *Sink) Check(ctx context.Context) error {
	_, err := s.prepare(ctx)
	return err
}

func (s *Sink) unusable(format string, args ...any) error {
	return fmt.Errorf("sink %s: %s: %w", s.options.Address, fmt.Sprintf(format, args...), stream.ErrUnusable)
}

// The sink's own tables. Names are binary, so that they are compared byte by byte.
const createProgress = `CREATE TABLE IF NOT EXISTS %s (
	changefeed VARBINARY(512) NOT NULL,
	table_schema VARBINARY(256) NOT NULL,
	table_name VARBINARY(256) NOT NULL,
	placement BIGINT NOT NULL COMMENT 'epoch of the placement of the changefeed that owns the table',
	counter BIGINT NOT NULL COMMENT 'epoch of the owner within the placement',
	position BIGINT UNSIGNED NOT NULL COMMENT 'everything up to here is in the table',
	PRIMARY KEY (changefeed, table_schema, table_name)
) ENGINE=InnoDB COMMENT='how far each table is, and who may write it; written by ebb'`

const createIntents = `CREATE TABLE IF NOT EXISTS %s (
	changefeed VARBINARY(512) NOT NULL,
	position BIGINT UNSIGNED NOT NULL,
	placement BIGINT NOT NULL,
	counter BIGINT NOT NULL,
	digest VARBINARY(64) NOT NULL COMMENT 'of the definitions of the tables before the statement',
	done BOOLEAN NOT NULL,
	statement LONGBLOB NOT NULL,
	PRIMARY KEY (changefeed, position)
) ENGINE=InnoDB COMMENT='definitions that were begun, and whether they are done; written by ebb'`

// prepare learns about the server and makes the sink's own tables, once.
func (s *Sink) prepare(ctx context.Context) (*server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return s.server, nil
	}
	var version string
	v := &server{}
	if err := s.db.QueryRowContext(ctx, "SELECT VERSION(), @@max_allowed_packet").Scan(&version, &v.packet); err != nil {
		return nil, s.wrap("connect", err)
	}
	v.mariaDB = strings.Contains(strings.ToLower(version), "mariadb")
	for _, statement := range []string{
		"CREATE DATABASE IF NOT EXISTS " + name(s.options.Schema),
		fmt.Sprintf(createProgress, s.progress),
		fmt.Sprintf(createIntents, s.intents),
	} {
		if _, err := s.db.ExecContext(ctx, statement); err != nil {
			return nil, s.wrap("make the tables of the progress in schema "+s.options.Schema, err)
		}
	}
	s.server = v
	return v, nil
}

// wrap names the server and what was being done to it. Refused credentials and privileges do not get better by trying again.
func (s *Sink) wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		switch e.Number {
		case 1045, 1130:
			return fmt.Errorf("sink %s: user %q is refused; check the password and from where the user may connect: %w (%w)", s.options.Address, s.options.User, stream.ErrUnusable, err)
		case 1290, 1836:
			return s.unusable("it does not take writes, which read_only=ON makes it refuse; SET GLOBAL read_only=OFF, or name the primary server instead (%v)", err)
		case 1044, 1142, 1143, 1227, 1370:
			return fmt.Errorf("sink %s: user %q lacks a privilege to %s; run GRANT ALL ON *.* TO '%s', or on each schema that is written and on %s: %w (%w)",
				s.options.Address, s.options.User, doing, s.options.User, s.options.Schema, stream.ErrUnusable, err)
		}
	}
	return fmt.Errorf("sink %s: %s: %w", s.options.Address, doing, err)
}
