"""What each route of the server takes and answers"""
