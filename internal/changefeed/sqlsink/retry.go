package sqlsink

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Waits between attempts.
const (
	firstWait = 20 * time.Millisecond
	lastWait  = 2 * time.Second
)

// retriable are the codes of errors that the next attempt may not have.
var retriable = map[uint16]bool{
	1020: true,             // a row changed since the transaction began
	1021: true, 1114: true, // the disk is full, or the space that tables may take
	1040: true,                                     // too many connections
	1053: true,                                     // the server is shutting down
	1080: true,                                     // forced to close the connection
	1152: true,                                     // aborted connection
	1158: true, 1159: true, 1160: true, 1161: true, // trouble on the network
	1184: true,             // aborted connection
	1203: true, 1226: true, // the user has too many connections
	1205: true, // waited for a lock too long
	1213: true, // deadlock
	1317: true, // the statement was interrupted
	1927: true, // the connection was killed
	4031: true, // the server ended an idle connection
}

// errConcurrent marks an error that a concurrent change has caused. The attempt is repeated.
var errConcurrent = errors.New("concurrent change")

// transient reports whether the next attempt may succeed.
func transient(err error) bool {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return retriable[e.Number]
	}
	var n net.Error
	return errors.Is(err, errConcurrent) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, mysql.ErrMalformPkt) || errors.As(err, &n)
}

// retry calls try until it succeeds, fails with an error that is not transient, or ctx is cancelled.
func (s *Sink) retry(ctx context.Context, doing string, try func() error) error {
	waits := backoff.New(backoff.Policy{First: firstWait, Longest: lastWait})
	for {
		err := try()
		s.note(err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("sink %s: %s: %w (%w)", s.options.Address, doing, ctx.Err(), err)
		case errors.Is(err, stream.ErrNotOwner), errors.Is(err, stream.ErrWentBack), errors.Is(err, stream.ErrUnusable):
			return err
		case !transient(err):
			return s.wrap(doing, err)
		}
		wait := waits.Next()
		if s.mayLog() {
			s.log.Warn("the sink failed; retrying", "operation", doing, "wait", wait, "error", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("sink %s: %s: %w (%w)", s.options.Address, doing, ctx.Err(), err)
		case <-time.After(wait):
		}
	}
}

// logEvery is the least time between two log lines about retries: when a server is down, every table fails.
const logEvery = 5 * time.Second

// failing is the last transient error of the server, until an attempt succeeds.
type failing struct {
	mu     sync.Mutex
	err    error
	since  time.Time
	logged time.Time
}

// note records how an attempt ended.
func (s *Sink) note(err error) {
	s.failing.mu.Lock()
	defer s.failing.mu.Unlock()
	switch {
	case err == nil:
		s.failing.err = nil
	case transient(err):
		if s.failing.err == nil {
			s.failing.since = time.Now()
		}
		s.failing.err = err
	}
}

func (s *Sink) mayLog() bool {
	s.failing.mu.Lock()
	defer s.failing.mu.Unlock()
	if time.Since(s.failing.logged) < logEvery {
		return false
	}
	s.failing.logged = time.Now()
	return true
}

// Trouble is the transient error that the server has failed with for more than a second, or nil.
func (s *Sink) Trouble() error {
	s.failing.mu.Lock()
	defer s.failing.mu.Unlock()
	if s.failing.err == nil || time.Since(s.failing.since) < time.Second {
		return nil
	}
	return fmt.Errorf("sink %s: %w", s.options.Address, s.failing.err)
}
