// Package omission leaves out columns and rows of tables.
//
//	rule      match "shop.users"    columns [password]         the table has no such column at the sink
//	rule      match "shop.orders"   rows "region = 7"          rows for which that is true are not at the sink
//
// A column is left out of everything that makes or changes a table: definitions, DDL and rows. A clause of DDL that is about such columns
// only is left out; one that is about them and others stops the changefeed, because what it does without them is not certain.
//
// Whether a row is left out is decided by one evaluator, for the initial copy and for changes. It is safe because a change has the whole
// row before and after it: a row whose key moves it across the border is inserted or deleted. Other columns of an expression must not
// change, and DDL must not change them.
package omission
