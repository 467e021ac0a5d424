package mariadb

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// gtid is the global transaction id of a transaction.
type gtid struct {
	domain, server uint32
	seq            uint64
}

func (g gtid) String() string {
	text := strconv.AppendUint(make([]byte, 0, 42), uint64(g.domain), 10)
	text = strconv.AppendUint(append(text, '-'), uint64(g.server), 10)
	return string(strconv.AppendUint(append(text, '-'), g.seq, 10))
}

// gtidKind are the flags of a transaction in its GTID event.
type gtidKind struct {
	standalone, ddl, preparedXA bool
	// An ALTER may be logged when it starts, and again when it has succeeded or failed.
	startAlter, commitAlter, rollbackAlter bool
}

// Flags of a GTID event.
const (
	gtidStandalone    = 1
	gtidGroupCommit   = 2
	gtidDDL           = 32
	gtidPreparedXA    = 64
	gtidCompletedXA   = 128
	gtidStartAlter    = 2
	gtidCommitAlter   = 4
	gtidRollbackAlter = 8
)

func parseGTIDEvent(server uint32, body []byte) (gtid, gtidKind, error) {
	r := &reader{data: body}
	id := gtid{server: server, seq: binary.LittleEndian.Uint64(r.take(8)), domain: binary.LittleEndian.Uint32(r.take(4))}
	flags := r.byte()
	if r.short {
		return gtid{}, gtidKind{}, fmt.Errorf("a GTID event is too short")
	}
	if flags&gtidGroupCommit != 0 {
		r.take(8)
	}
	if flags&(gtidPreparedXA|gtidCompletedXA) != 0 {
		r.take(4)
		r.take(int(r.byte()) + int(r.byte()))
	}
	var extra byte
	if r.left() > 0 {
		extra = r.byte()
	}
	return id, gtidKind{
		standalone: flags&gtidStandalone != 0, ddl: flags&gtidDDL != 0, preparedXA: flags&gtidPreparedXA != 0,
		startAlter: extra&gtidStartAlter != 0, commitAlter: extra&gtidCommitAlter != 0, rollbackAlter: extra&gtidRollbackAlter != 0,
	}, nil
}

func parseGTID(text string) (gtid, error) {
	parts := strings.Split(text, "-")
	if len(parts) != 3 {
		return gtid{}, fmt.Errorf("%q is not a GTID of MariaDB", text)
	}
	domain, err1 := strconv.ParseUint(parts[0], 10, 32)
	server, err2 := strconv.ParseUint(parts[1], 10, 32)
	seq, err3 := strconv.ParseUint(parts[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return gtid{}, fmt.Errorf("%q is not a GTID of MariaDB: %w", text, err)
	}
	return gtid{uint32(domain), uint32(server), seq}, nil
}

// parseGTIDs parses a list separated by commas.
func parseGTIDs(text string) ([]gtid, error) {
	var list []gtid
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		g, err := parseGTID(part)
		if err != nil {
			return nil, err
		}
		list = append(list, g)
	}
	return list, nil
}

// logState is the state of the server's log.
type logState struct {
	// head is the newest transaction; its sequence number is 0 if there is none.
	head gtid
	// writers is the number of servers whose transactions are in it.
	writers int
}

// logState reads the state of the log. It refuses a log of several domains: sequence numbers of different domains are not ordered.
func (s *Source) logState(ctx context.Context) (logState, error) { return s.logStateBy(ctx, s.db) }

func (s *Source) logStateBy(ctx context.Context, by querier) (logState, error) {
	var text string
	if err := by.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_binlog_state").Scan(&text); err != nil {
		return logState{}, s.wrap("read gtid_binlog_state", err)
	}
	list, err := parseGTIDs(text)
	if err != nil {
		return logState{}, s.wrap("read gtid_binlog_state", err)
	}
	state := logState{writers: len(list)}
	for i, g := range list {
		if i > 0 && g.domain != list[0].domain {
			return logState{}, s.unusable("gtid_binlog_state is %q: the log has several replication domains, whose transactions are not ordered; "+
				"use one gtid_domain_id, and delete the unused ones with FLUSH BINARY LOGS DELETE_DOMAIN_ID=(…)", text)
		}
		if g.seq > state.head.seq {
			state.head = g
		}
	}
	return state, nil
}

func (s *Source) unusable(format string, args ...any) error {
	return fmt.Errorf("source %s: %s: %w", s.options.Address, fmt.Sprintf(format, args...), stream.ErrUnusable)
}

// logFiles are the names of the files of the log, oldest first.
func (s *Source) logFiles(ctx context.Context) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, "SHOW BINARY LOGS")
	if err != nil {
		return nil, s.wrap("list binary logs", err)
	}
	defer rows.Close()
	var files []string
	for rows.Next() {
		var name, size string
		if err := rows.Scan(&name, &size); err != nil {
			return nil, s.wrap("list binary logs", err)
		}
		files = append(files, name)
	}
	return files, s.wrap("list binary logs", rows.Err())
}

// ofDomain is the transaction of a domain in a list, with a sequence number of 0 if there is none, and others are those of other domains.
func ofDomain(list []gtid, domain uint32) (g gtid, others []gtid) {
	g.domain = domain
	for _, l := range list {
		if l.domain == domain {
			g = l
		} else {
			others = append(others, l)
		}
	}
	return g, others
}

// fileStart are the newest transactions before a file of the log, one of each domain: also of those that were deleted later. ok is false if
// the file was purged meanwhile.
func (s *Source) fileStart(ctx context.Context, file string) (list []gtid, ok bool, err error) {
	var text sql.NullString
	if err := s.db.QueryRowContext(ctx, "SELECT BINLOG_GTID_POS(?, 4)", file).Scan(&text); err != nil {
		return nil, false, s.wrap("read the first GTID of "+file, err)
	}
	if !text.Valid {
		return nil, false, nil
	}
	list, err = parseGTIDs(text.String)
	return list, true, err
}

// oldest are the transactions after which the log is retained, one of each domain.
func (s *Source) oldest(ctx context.Context) ([]gtid, error) {
	for {
		files, err := s.logFiles(ctx)
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, s.unusable("the server has no binary log; start it with --log-bin")
		}
		list, ok, err := s.fileStart(ctx, files[0])
		if ok || err != nil {
			return list, err
		}
	}
}

// floor is the newest boundary between files of the log that is not after a position. A dump can start there even if it is not known
// which server wrote the transaction at the position, or if there is none with this number.
func (s *Source) floor(ctx context.Context, position stream.Position) (gtid, error) {
	state, err := s.logState(ctx)
	if err != nil {
		return gtid{}, err
	}
	files, err := s.logFiles(ctx)
	if err != nil {
		return gtid{}, err
	}
	start := func(file string) (gtid, error) {
		list, _, err := s.fileStart(ctx, file)
		g, _ := ofDomain(list, state.head.domain)
		return g, err
	}
	var failed error
	beyond := sort.Search(len(files), func(i int) bool {
		g, err := start(files[i])
		failed = errors.Join(failed, err)
		return g.seq > uint64(position)
	})
	if failed != nil {
		return gtid{}, failed
	}
	if beyond == 0 {
		return gtid{}, s.checkRetained(ctx, position)
	}
	return start(files[beyond-1])
}

// startText is the state of a replica that has everything up to a transaction; empty if there is none. The server wants a replica to know the
// domains that the beginnings of files list. Those that were deleted have no transactions in the log.
func (s *Source) startText(ctx context.Context, after gtid) (string, error) {
	list, err := s.oldest(ctx)
	if err != nil {
		return "", err
	}
	_, others := ofDomain(list, after.domain)
	if after.seq > 0 {
		others = append(others, after)
	}
	var texts []string
	for _, g := range others {
		texts = append(texts, g.String())
	}
	return strings.Join(texts, ","), nil
}

// checkRetained returns an error if the log does not have everything after a position any more, or does not reach the position.
func (s *Source) checkRetained(ctx context.Context, position stream.Position) error {
	state, err := s.logState(ctx)
	if err != nil {
		return err
	}
	if uint64(position) > state.head.seq {
		return s.unusable("position %d is after the end of the log, GTID %s: this is another server than before, or it has lost a part of its log; "+
			"use the server that was read before, or start again from a new copy", position, state.head)
	}
	list, err := s.oldest(ctx)
	if err != nil {
		return err
	}
	oldest, _ := ofDomain(list, state.head.domain)
	if oldest.seq > uint64(position) {
		return fmt.Errorf("source %s: position %d is purged: the log begins after GTID %s; start again from a copy taken at or after it, and increase binlog_expire_logs_seconds: %w",
			s.options.Address, position, oldest, stream.ErrPurged)
	}
	return nil
}
