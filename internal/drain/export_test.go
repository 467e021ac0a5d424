package drain

// Notices are the events that a drain's record calls for.
var Notices = notices
