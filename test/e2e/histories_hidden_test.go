package e2e

// hiddenHistories are small histories in which the text of a statement does not show all that it means: it depends on its session, on its
// transaction, or on what its names stand for.
var hiddenHistories = []fixedHistory{
	{name: "41 a statement and a temporary table in one transaction", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		SET SESSION binlog_format = STATEMENT;
		BEGIN;
		INSERT INTO {a}.t VALUES (1);
		CREATE TEMPORARY TABLE {a}.tmp (id INT);
		COMMIT;
		SET SESSION binlog_format = ROW;
	`},
	{name: "41 rows and temporary tables in one transaction", text: `
		CREATE TABLE {a}.t (id VARCHAR(40) PRIMARY KEY);
		SET SESSION binlog_format = MIXED;
		BEGIN;
		INSERT INTO {a}.t VALUES (UUID());
		CREATE TEMPORARY TABLE {a}.tmp (id INT);
		INSERT INTO {a}.t VALUES (UUID());
		DROP TEMPORARY TABLE {a}.tmp;
		INSERT INTO {a}.t VALUES (UUID());
		COMMIT;
		SET SESSION binlog_format = ROW;
	`},
	{name: "42 an IF EXISTS that is not written", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		INSERT INTO {a}.t VALUES (1);
		SET SESSION sql_if_exists = 1;
		RENAME TABLE {a}.nope TO {a}.x, {a}.t TO {a}.u;
		ALTER TABLE {a}.nope ADD c INT;
		DROP TABLE {a}.nope;
		SET SESSION sql_if_exists = 0;
		INSERT INTO {a}.u VALUES (2);
	`},
	{name: "42 an IF EXISTS that is not written, through a table that exists", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.kept (id INT PRIMARY KEY);
		INSERT INTO {a}.kept VALUES (1);
		SET SESSION sql_if_exists = 1;
		RENAME TABLE {a}.nope TO {a}.kept, {a}.kept TO {a}.z;
		SET SESSION sql_if_exists = 0;
	`},
	{name: "43 a drop of sequences that names tables", text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		CREATE TABLE {x}.o (id INT PRIMARY KEY);
		CREATE SEQUENCE {a}.s;
		CREATE SEQUENCE {x}.s;
		INSERT INTO {a}.t VALUES (1);
		DROP SEQUENCE IF EXISTS {a}.t, {a}.s, {x}.o, {x}.s;
		INSERT INTO {a}.t VALUES (2);
		DROP SEQUENCE IF EXISTS {a}.t;
		ALTER TABLE {a}.t ADD c INT DEFAULT 5;
		INSERT INTO {a}.t VALUES (3, 3);
	`},
	{name: "44 a table that is altered and was made outside the log", ends: []outcome{failed}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY);
		-- wait
		SET SESSION sql_log_bin = 0;
		CREATE TABLE {a}.u (id INT PRIMARY KEY);
		SET SESSION sql_log_bin = 1;
		ALTER TABLE {a}.u ADD c INT;
	`},
	{name: "45 a stored column with a quotient", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, n DECIMAL(10,0));
		INSERT INTO {a}.t VALUES (1, 1);
		SET SESSION div_precision_increment = 12;
		ALTER TABLE {a}.t ADD g DECIMAL(20,12) AS (n / 7) STORED;
	`},
	{name: "45 a stored column that is computed by the day", ends: []outcome{rejected}, text: `
		CREATE TABLE {a}.t (id INT PRIMARY KEY, x TIME, g DATETIME AS (CAST(x AS DATETIME)) STORED);
		INSERT INTO {a}.t (id, x) VALUES (1, NULL);
		SET timestamp = 1700000000;
		INSERT INTO {a}.t (id, x) VALUES (2, '10:00:00');
		SET timestamp = DEFAULT;
	`},
}
