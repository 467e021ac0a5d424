package sqlsink

import "context"

// In the layout of earlier versions the key of the progress table is the name of a table, without since when the table has it. A node of such a
// version must not write rows of this layout: it does not know which table of a name it writes. So the column that each of its statements
// names, changefeed, is called feed now, and they all fail: it writes nothing until it is replaced, and waits.
//
// One statement does all, and MariaDB executes it wholly or not at all, so that there is nothing between the two layouts. It waits for the
// transactions that write in the layout before, and those that come after it fail. All tables of that layout have their names since 0.

// migrate changes the progress table to this layout, unless it has it.
func (s *Sink) migrate(ctx context.Context) error {
	earlier, err := s.earlierLayout(ctx)
	if err != nil || !earlier {
		return err
	}
	_, err = s.db.ExecContext(ctx, "ALTER TABLE "+s.progress+" CHANGE COLUMN changefeed feed VARBINARY(512) NOT NULL COMMENT 'namespace/name/uid of the changefeed',"+
		" ADD COLUMN since BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'position of the DDL that gave the table its name; 0 if it had it before' AFTER table_name,"+
		" DROP PRIMARY KEY, ADD PRIMARY KEY (feed, table_schema, table_name, since)")
	if err != nil {
		if still, failed := s.earlierLayout(ctx); failed == nil && !still {
			return nil // another node has done it meanwhile
		}
		return err
	}
	s.log.Info("the progress table has the layout of this version now; nodes of earlier versions cannot write this sink any more", "table", s.progress)
	return nil
}

// earlierLayout reports whether the progress table has the layout of earlier versions.
func (s *Sink) earlierLayout(ctx context.Context) (earlier bool, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM information_schema.columns WHERE table_schema = ? AND table_name = 'progress' AND column_name = 'changefeed')", s.options.Schema).Scan(&earlier)
	return earlier, err
}
