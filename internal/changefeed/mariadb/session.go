package mariadb

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlzone"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Bits of sql_mode that change how a statement is read.
const (
	modeANSIQuotes         = 1 << 2
	modeNoBackslashEscapes = 1 << 20
)

// sessionContext are the settings of the session that executed a statement, as far as the meaning of the statement depends on them.
type sessionContext struct {
	known                                            bool
	converted                                        bool // the statement was converted to UTF-8
	sqlMode                                          uint64
	charset, collation, serverCollation, dbCollation uint16
	timeZone                                         string
	zoneDigest                                       string // of the zone of the server's machine, if the session has that and it is not a fixed offset
	explicitTimestamp                                bool
	checksForeignKeys                                bool
	ifExists                                         bool // sql_if_exists: RENAME, ALTER and DROP have an IF EXISTS that is not written
	// increment and offset of AUTO_INCREMENT, and the number of the language of dates; 0 for the defaults of a server.
	increment, offset, language uint16
	// microseconds of the time of the statement; 0 if the statement does not use them.
	microseconds uint32
}

// The status variables of a query event, and how long their values are.
const (
	statusFlags2           = 0
	statusSQLMode          = 1
	statusCatalog          = 2
	statusAutoIncrement    = 3
	statusCharset          = 4
	statusTimeZone         = 5
	statusCatalogNZ        = 6
	statusLcTimeNames      = 7
	statusCharsetDatabase  = 8
	statusTableMapUpdate   = 9
	statusDataWritten      = 10
	statusInvoker          = 11
	statusHighResolution   = 128
	statusXID              = 129
	flag2ExplicitTimestamp = 1 << 24
	flag2NoForeignKeys     = 1 << 26
	flag2IfExists          = 1 << 28
)

// parseSession reads status variables up to the first that it does not know: the ones it needs come early.
func parseSession(vars []byte) sessionContext {
	var c sessionContext
	r := &reader{data: vars}
	for r.left() > 0 && !r.short {
		switch r.byte() {
		case statusFlags2:
			flags := binary.LittleEndian.Uint32(r.take(4))
			c.explicitTimestamp, c.checksForeignKeys, c.ifExists = flags&flag2ExplicitTimestamp != 0, flags&flag2NoForeignKeys == 0, flags&flag2IfExists != 0
		case statusSQLMode:
			c.sqlMode = binary.LittleEndian.Uint64(r.take(8))
		case statusCatalog:
			r.take(int(r.byte()) + 1)
		case statusAutoIncrement:
			v := r.take(4)
			c.increment, c.offset = binary.LittleEndian.Uint16(v), binary.LittleEndian.Uint16(v[2:])
		case statusDataWritten:
			r.take(4)
		case statusCharset:
			v := r.take(6)
			c.charset, c.collation, c.serverCollation = binary.LittleEndian.Uint16(v), binary.LittleEndian.Uint16(v[2:]), binary.LittleEndian.Uint16(v[4:])
			c.known = true
		case statusTimeZone:
			c.timeZone = string(r.take(int(r.byte())))
		case statusCatalogNZ:
			r.take(int(r.byte()))
		case statusLcTimeNames:
			c.language = binary.LittleEndian.Uint16(r.take(2))
		case statusCharsetDatabase:
			c.dbCollation = binary.LittleEndian.Uint16(r.take(2))
		case statusTableMapUpdate, statusXID:
			r.take(8)
		case statusInvoker:
			r.take(int(r.byte()))
			r.take(int(r.byte()))
		case statusHighResolution:
			v := r.take(3)
			c.microseconds = uint32(v[0]) | uint32(v[1])<<8 | uint32(v[2])<<16
		default:
			return c
		}
	}
	return c
}

// prefix is the comment for a statement that was executed at a time. Collations are by their numbers: for a character set a server accepts
// only numbers of default collations. oldMode is the part of old_mode that the statement depends on, which is not in the log: that of the
// server counts.
func (c sessionContext) prefix(at time.Time, collations map[uint64]collation, oldMode int) string {
	if !c.known {
		return ""
	}
	client := fmt.Sprint(c.charset)
	if name := collations[uint64(c.charset)].charset; name != "" {
		client = name
	}
	set := []string{
		fmt.Sprintf("sql_mode=%d", c.sqlMode),
		"character_set_client=" + client,
		fmt.Sprintf("collation_connection=%d", c.collation),
		fmt.Sprintf("collation_server=%d", c.serverCollation),
		fmt.Sprintf("timestamp=%d.%06d", at.Unix(), c.microseconds),
		fmt.Sprintf("auto_increment_increment=%d", max(c.increment, 1)), // a column that is added numbers the rows
		fmt.Sprintf("auto_increment_offset=%d", max(c.offset, 1)),
		fmt.Sprintf("lc_time_names=%d", c.language),
		fmt.Sprintf("old_mode=%d", oldMode),
	}
	if c.explicitTimestamp {
		set = append(set, "explicit_defaults_for_timestamp=1")
	} else {
		set = append(set, "explicit_defaults_for_timestamp=0")
	}
	if c.ifExists {
		set = append(set, "sql_if_exists=1")
	}
	if c.checksForeignKeys { // whether keys of other tables follow a rename depends on it
		set = append(set, "foreign_key_checks=1")
	}
	if c.timeZone != "" && !strings.ContainsAny(c.timeZone, "'\\*,") {
		set = append(set, "time_zone='"+c.timeZone+"'")
	}
	if c.zoneDigest != "" {
		set = append(set, stream.ZoneDigest+"'"+c.zoneDigest+"'")
	}
	return stream.SessionMark + strings.Join(set, ",") + "*/ "
}

// inZone makes a session that has the time zone of the server's machine one that means the same on another machine.
func (a *assembler) inZone(ctx context.Context, c sessionContext) (sessionContext, error) {
	if c.timeZone != sqlzone.Name {
		return c, nil
	}
	if a.zone.Digest == "" {
		zone, err := sqlzone.Read(ctx, a.source.db)
		if err != nil {
			return c, a.source.wrap("read the time zone of the server", err)
		}
		a.zone = zone
	}
	if a.zone.Fixed != "" {
		c.timeZone = a.zone.Fixed
	} else {
		c.zoneDigest = a.zone.Digest
	}
	return c, nil
}

// The parts of old_mode on which DDL depends, by their numbers: what a TIME is as a DATETIME, and what the character set utf8 is.
var oldModes = map[string]int{"ZERO_DATE_TIME_CAST": 4, "UTF8_IS_UTF8MB3": 8}

// oldMode is the number of those that the server has.
func (s *Source) oldMode(ctx context.Context) (number int, err error) {
	all, err := s.variable(ctx, "old_mode")
	for name := range strings.SplitSeq(all, ",") {
		number += oldModes[name]
	}
	return number, err
}

// reader takes bytes off the front of a slice. What is missing reads as zeros and sets short.
type reader struct {
	data  []byte
	at    int
	short bool
}

func (r *reader) left() int { return len(r.data) - r.at }

func (r *reader) byte() byte { return r.take(1)[0] }

func (r *reader) take(n int) []byte {
	if n > r.left() {
		r.short, r.at = true, len(r.data)
		return make([]byte, n)
	}
	r.at += n
	return r.data[r.at-n : r.at]
}
