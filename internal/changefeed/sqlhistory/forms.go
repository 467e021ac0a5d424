package sqlhistory

import (
	"maps"
	"slices"
)

// production makes statements of one form.
type production struct {
	form   Form
	weight int
	make   func(*Generator)
}

// allForms are those of productions, and those that occur within them.
func allForms() map[Form]bool {
	all := map[Form]bool{}
	for _, p := range allProductions() {
		all[p.form] = true
	}
	for _, f := range features {
		all[f] = true
	}
	for _, t := range columnTypes() {
		all[t.form] = true
	}
	for _, t := range textual {
		all[t.form] = true
	}
	for _, c := range charsets {
		all[Form("charset: "+c.name)] = true
	}
	return all
}

// Forms are all forms of the grammar, sorted.
func Forms() []Form { return slices.Sorted(maps.Keys(allForms())) }

func allProductions() []production {
	notPartitioned := func(t *table) bool { return t.partitions == nil }
	partitioned := func(t *table) bool { return t.partitions != nil }
	partitionable := func(t *table) bool {
		return plain(t) && t.engine == "" && len(t.key) == 1 && t.key[0] == "id" && len(t.indexes) == 0 && t.parent == nil
	}
	versionable := func(t *table) bool { return t.partitions == nil && t.engine == "" && t.parent == nil }
	return []production{
		{"create: table", 30, (*Generator).createTable},
		{"create: like", 6, (*Generator).createLike},
		{"create: as select", 6, (*Generator).createSelect},
		{"create: foreign key", 6, (*Generator).createForeign},
		{"insert", 60, (*Generator).insert},
		{"insert: set", 6, (*Generator).insertSet},
		{"insert: select", 6, (*Generator).insertSelect},
		{"insert: on duplicate key", 12, (*Generator).onDuplicate},
		{"replace", 12, (*Generator).replace},
		{"update", 25, (*Generator).update},
		{"update: key", 12, (*Generator).updateKey},
		{"update: key of another type", 6, (*Generator).updateOtherKey},
		{"update: unique values", 6, (*Generator).updateUnique},
		{"update: several tables", 10, (*Generator).updateMany},
		{"delete", 15, (*Generator).delete},
		{"delete: all", 3, (*Generator).deleteAll},
		{"delete: several tables", 10, (*Generator).deleteMany},
		{"delete: history", 4, (*Generator).deleteHistory},
		{"transaction", 12, (*Generator).transaction},
		{"transaction: rollback", 6, (*Generator).rollback},
		{"transaction: large", 2, (*Generator).large},
		{"transaction: autocommit off", 5, (*Generator).autocommitOff},
		{"transaction: lock tables", 3, (*Generator).lockTables},
		{"xa: one phase", 4, (*Generator).xaOnePhase},
		{"xa: prepared", 2, (*Generator).xaPrepared},
		{"rename", 12, (*Generator).rename},
		{"rename: swap", 6, (*Generator).swap},
		{"rename: chain", 6, (*Generator).chain},
		{"rename: circle", 8, (*Generator).circle},
		{"rename: rotate", 3, (*Generator).rotate},
		{"rename: shadow", 4, (*Generator).shadow},
		{"rename: some are missing", 4, (*Generator).renameMissing},
		{"create: or replace fails", 3, (*Generator).replaceFails},
		{"rename: out of the filter", 2, (*Generator).renameOut},
		{"rename: into the filter", 1, (*Generator).renameIn},
		{"create: like outside", 2, (*Generator).likeOutside},
		{"drop", 12, (*Generator).drop},
		{"drop: also outside", 3, (*Generator).dropAlsoOutside},
		{"drop: name used again", 8, (*Generator).dropAgain},
		{"truncate", 8, (*Generator).truncate},
		{"table: tend", 5, (*Generator).tend},
		{"database: create or alter", 8, (*Generator).createDatabase},
		{"database: alter the first", 3, (*Generator).alterFirst},
		{"database: drop", 4, (*Generator).dropDatabase},
		{"database: drop with skipped tables", 1, (*Generator).dropFirst},
		{"database: or replace", 2, (*Generator).replaceDatabase},
		{"database: use", 6, (*Generator).useSchema},
		{"sequence", 6, (*Generator).sequence},
		{"sequence: default", 3, (*Generator).sequenceDefault},
		{"sequence: drop names a table", 3, (*Generator).dropSequences},
		{"view", 6, (*Generator).view},
		{"trigger: at the source", 6, (*Generator).trigger},
		{"trigger: at the sink", 1, (*Generator).sinkTrigger},
		{"procedure", 4, (*Generator).procedure},
		{"prepared statement", 4, (*Generator).prepared},
		{"procedure: with DDL", 3, (*Generator).procedureWithDDL},
		{"function", 2, (*Generator).function},
		{"event", 2, (*Generator).event},
		{"user", 2, (*Generator).user},
		{"temporary", 5, (*Generator).temporaryTable},
		{"temporary: in a transaction", 3, (*Generator).temporaryInTransaction},
		{"outside", 4, (*Generator).outside},
		{"period", 3, (*Generator).period},
		{"value: huge", 1, (*Generator).hugeRow},
		{"value: zero as a key", 3, (*Generator).zeroAsKey},
		{"value: zero dates", 3, (*Generator).zeroDates},
		{"session: names", 3, (*Generator).otherCharset},
		{"session: ANSI_QUOTES", 3, session("sql_mode = 'ANSI_QUOTES'", "sql_mode = DEFAULT")},
		{"session: NO_BACKSLASH_ESCAPES", 3, session("sql_mode = 'NO_BACKSLASH_ESCAPES'", "sql_mode = DEFAULT")},
		{"session: ORACLE", 2, session("sql_mode = 'ORACLE'", "sql_mode = DEFAULT")},
		{"session: no checks of foreign keys", 3, session("foreign_key_checks = 0", "foreign_key_checks = 1")},
		{"session: no check constraints", 2, session("check_constraint_checks = 0", "check_constraint_checks = 1")},
		{"session: IF EXISTS", 3, session("sql_if_exists = 1", "sql_if_exists = 0")},
		{"session: time zone", 3, session("time_zone = '+05:30'", "time_zone = DEFAULT")},
		{"session: explicit timestamps", 3, session("explicit_defaults_for_timestamp = 0", "explicit_defaults_for_timestamp = DEFAULT")},
		{"session: engine", 2, session("default_storage_engine = InnoDB, innodb_strict_mode = 0", "innodb_strict_mode = DEFAULT")},
		{"session: timestamp", 2, session("timestamp = 1700000000.123456", "timestamp = DEFAULT")},
		{"session: increment", 2, session("auto_increment_increment = 7, auto_increment_offset = 3", "auto_increment_increment = 1, auto_increment_offset = 1")},
		{"session: alter history", 2, session("system_versioning_alter_history = KEEP", "system_versioning_alter_history = DEFAULT")},
		{"session: row image", 1, session("binlog_row_image = MINIMAL", "binlog_row_image = FULL")},
		{"session: statement format", 1, session("binlog_format = STATEMENT", "binlog_format = ROW")},
		{"session: annotations", 2, session("binlog_annotate_row_events = 0", "binlog_annotate_row_events = 1")},
		{"changefeed: pause", 3, (*Generator).pause},
		{"changefeed: alter while paused", 3, (*Generator).alterPaused},
		{"alter: add column", 12, altering(anyTable, addColumn)},
		{"alter: drop column", 8, altering(anyTable, dropColumn)},
		{"alter: modify column", 8, altering(notPartitioned, modifyColumn)},
		{"alter: change column", 6, altering(notPartitioned, changeColumn)},
		{"alter: rename column", 6, altering(notPartitioned, renameColumn)},
		{"alter: swap columns", 4, altering(notPartitioned, swapColumns)},
		{"alter: add columns in brackets", 4, altering(notPartitioned, addColumns)},
		{"alter: default", 4, altering(anyTable, alterDefault)},
		{"alter: default of a sequence", 3, (*Generator).defaultOfSequence},
		{"alter: charset of the schema", 3, (*Generator).charsetOfSchema},
		{"alter: add index", 6, altering(notPartitioned, addIndex)},
		{"alter: drop index", 4, alteringIndex(dropIndex)},
		{"alter: rename index", 4, alteringIndex(renameIndex)},
		{"alter: add primary key", 4, alteringKeyless(addPrimary)},
		{"alter: drop primary key", 3, altering(plain, dropPrimary)},
		{"alter: check", 3, altering(anyTable, changeCheck)},
		{"alter: foreign key", 4, altering(versionable, changeForeign)},
		{"alter: options", 5, altering(anyTable, oneOf("COMMENT = 'other'", "FORCE", "AUTO_INCREMENT = 5000", "STATS_PERSISTENT=1", "DEFAULT CHARACTER SET latin1", "ROW_FORMAT=COMPACT", "ORDER BY id", "DISABLE KEYS", "ENABLE KEYS"))},
		{"alter: convert charset", 4, altering(notPartitioned, oneOf("CONVERT TO CHARACTER SET utf8mb4", "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"))},
		{"alter: engine InnoDB", 3, altering(notPartitioned, toEngine("InnoDB"))},
		{"alter: engine other", 1, altering(versionable, toEngine("MyISAM", "Aria"))},
		{"alter: versioning", 4, altering(versionable, changeVersioning)},
		{"alter: rename", 6, altering(anyTable, alterRename)},
		{"partition: add", 6, alteringRanges(addPartition)},
		{"partition: drop", 6, alteringRanges(dropPartition)},
		{"partition: truncate", 6, alteringRanges(truncatePartition)},
		{"partition: reorganize", 6, alteringRanges(reorganizePartition)},
		{"partition: tend", 6, alteringRanges(tendPartition)},
		{"partition: remove", 5, altering(partitioned, removePartitioning)},
		{"partition: alter by", 4, altering(partitionable, partitionBy)},
		{"partition: coalesce or add", 4, (*Generator).coalesce},
		{"partition: exchange", 6, (*Generator).exchange},
		{"partition: convert to table", 4, (*Generator).convertOut},
		{"partition: convert table", 4, (*Generator).convertIn},
		{"index: create", 5, (*Generator).createIndex},
		{"index: drop", 4, (*Generator).dropIndexOn},
	}
}

// features are forms within statements of other forms.
var features = []Form{
	"written: SET STATEMENT", "written: comment before", "written: comment inside", "written: executable comment", "written: lower case", "written: semicolon",
	"name: quoted", "name: quoted column", "name: unqualified",
	"create: or replace", "create: if not exists", "create: like after alter", "create: or replace like", "create: or replace as select", "create: if not exists as select",
	"key: primary", "key: none", "key: composite", "key: of another type", "key: unique not null", "key: unique nullable", "key: auto increment",
	"column: generated virtual", "column: generated stored", "column: generated of a timestamp", "column: generated of a time", "column: default now", "column: on update now", "column: not null", "column: default", "column: default expression",
	"column: comment", "column: invisible", "column: collation",
	"index: in create", "index: prefix", "index: unique hash", "index: spatial", "index: fulltext", "index: descending", "index: ignored", "index: unique", "index: unique alone", "index: wait", "table: wide",
	"constraint: check", "engine: MyISAM", "engine: Aria", "engine: MEMORY", "option: engine InnoDB", "option: charset", "option: wide charset", "option: comment", "option: row format",
	"option: auto increment", "option: page compressed", "versioned: create",
	"partition: by range", "partition: by list", "partition: by hash", "partition: by key", "partition: by range columns", "partition: subpartitions",
	"foreign key: on delete cascade", "foreign key: on delete set null", "foreign key: restrict", "foreign key: on update cascade", "foreign key: on update set null", "foreign key: of the table itself",
	"alter: online", "alter: ignore", "alter: if exists", "alter: wait", "alter: nowait", "alter: algorithm and lock", "alter: several clauses",
	"alter: add column if not exists", "alter: add column first", "alter: add column after", "alter: drop column if exists", "alter: move column",
	"rename: other schema", "rename: if exists", "rename: wait", "drop: if exists", "drop: several", "drop: wait", "drop: restrict or cascade",
	"truncate: without TABLE", "truncate: wait", "update: order and limit", "delete: limit", "delete: returning", "transaction: savepoint", "temporary: hides a table", "view: rename", "database: written otherwise",
}
