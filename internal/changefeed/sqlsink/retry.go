package sqlsink

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Waits between attempts.
const (
	firstWait = 20 * time.Millisecond
	lastWait  = 2 * time.Second
)

// retriable are the server's codes of errors that may be gone at the next attempt.
var retriable = map[uint16]bool{
	1020: true,                                     // a row changed since the transaction began
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

// errTryAgain marks what went wrong by chance.
var errTryAgain = errors.New("try again")

// transient says whether trying again may help.
func transient(err error) bool {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return retriable[e.Number]
	}
	var n net.Error
	return errors.Is(err, errTryAgain) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, mysql.ErrMalformPkt) || errors.As(err, &n)
}

// again calls try until it succeeds, fails for good, or ctx ends.
func (s *Sink) again(ctx context.Context, doing string, try func() error) error {
	wait := firstWait
	for {
		err := try()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("sink %s: %s: %w (%v)", s.options.Address, doing, ctx.Err(), err)
		case errors.Is(err, stream.ErrNotOwner), errors.Is(err, stream.ErrUnusable):
			return err
		case !transient(err):
			return s.wrap(doing, err)
		}
		s.log.Warn("the sink failed, trying again", "doing", doing, "wait", wait, "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("sink %s: %s: %w (%v)", s.options.Address, doing, ctx.Err(), err)
		case <-time.After(wait):
		}
		wait = min(2*wait, lastWait)
	}
}
