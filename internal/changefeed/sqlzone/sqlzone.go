// Package sqlzone compares the time zones that MariaDB servers take from their machines.
package sqlzone

import (
	"context"
	"database/sql"
	"fmt"
)

// Name is the time zone of sessions that have the one of the server's machine.
const Name = "SYSTEM"

// Zone is the time zone of a server's machine.
type Zone struct {
	// Fixed is the offset from UTC, such as +02:00, if it has always been the same; else empty.
	Fixed string
	// Digest is that of the offset at many times. Equal zones have the same.
	Digest string
}

// Querier is a pool of connections or one session.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// query reads the offsets from UTC, in seconds, of every fifteenth day of the years that a TIMESTAMP can have. A server does not tell its zone
// by a name that others know.
const query = `SET STATEMENT time_zone='SYSTEM', group_concat_max_len=1048576 FOR SELECT MIN(seconds), MAX(seconds), MD5(GROUP_CONCAT(seconds ORDER BY at)) FROM
	(SELECT at, TIMESTAMPDIFF(SECOND, '1970-01-01', FROM_UNIXTIME(at)) - at AS seconds FROM
		(SELECT (a.n + 10 * b.n + 100 * c.n + 1000 * d.n) * 1296000 AS at FROM ` + digits + ` a, ` + digits + ` b, ` + digits + ` c, (SELECT 0 AS n UNION SELECT 1) d) instants
	WHERE at BETWEEN 1296000 AND 2147000000) offsets`

const digits = `(SELECT 0 AS n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7 UNION SELECT 8 UNION SELECT 9)`

// widest is an offset in seconds that every server accepts as a time zone.
const widest = 12 * 3600

// Read reads the time zone of a server's machine.
func Read(ctx context.Context, db Querier) (Zone, error) {
	var least, most int
	var z Zone
	if err := db.QueryRowContext(ctx, query).Scan(&least, &most, &z.Digest); err != nil {
		return Zone{}, err
	}
	if least == most && least%60 == 0 && -widest <= least && least <= widest {
		sign := '+'
		if least < 0 {
			sign, least = '-', -least
		}
		z.Fixed = fmt.Sprintf("%c%02d:%02d", sign, least/3600, least/60%60)
	}
	return z, nil
}
